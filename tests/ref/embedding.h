#pragma once

#include <cstdint>
#include <vector>

#include "core/to_size.h"

namespace ballast::ref {

// dtable of a table [V, C] whose rows `ids` were taken and got the gradients dy.
inline std::vector<double> embedding_backward(std::int64_t vocabulary, std::int64_t width,
                                              const std::vector<std::int32_t>& ids,
                                              const std::vector<double>& dy) {
  std::vector<double> dtable(to_size(vocabulary * width));
  for (std::size_t r = 0; r < ids.size(); ++r) {
    for (std::int64_t c = 0; c < width; ++c) {
      dtable[to_size(ids[r] * width + c)] += dy[r * to_size(width) + to_size(c)];
    }
  }
  return dtable;
}

}  // namespace ballast::ref
