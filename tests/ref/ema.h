#pragma once

#include <cstddef>
#include <vector>

namespace ballast::ref {

inline void ema(std::vector<double>& shadow, const std::vector<double>& p, double decay) {
  for (std::size_t i = 0; i < p.size(); ++i) shadow[i] = decay * shadow[i] + (1 - decay) * p[i];
}

}  // namespace ballast::ref
