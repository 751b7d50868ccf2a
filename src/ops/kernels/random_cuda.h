#pragma once

#include <cstdint>

namespace ballast::ops::cuda {

// core/random.h's RandomSource as CUDA sources see it.
struct RandomKey {
  std::uint32_t seed = 0, stream = 0, step = 0, site = 0;
};
template <class Source>
RandomKey random_key(const Source& s) {
  return {s.seed, s.stream, s.step, s.site};
}

}  // namespace ballast::ops::cuda
