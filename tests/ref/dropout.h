#pragma once

#include <cmath>
#include <vector>

#include "core/random.h"

namespace ballast::ref {

// x / (1 - p) where the element's random word is at least p 2^32, else 0; x starts at element
// `first` of the whole tensor. Its own backward.
inline std::vector<double> dropout(const std::vector<double>& x, double probability,
                                   const RandomSource& source, std::uint64_t first = 0) {
  std::vector<double> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool keep = source.word(first + i) >= std::floor(probability * 0x1p32);
    y[i] = keep ? x[i] / (1 - probability) : 0;
  }
  return y;
}

}  // namespace ballast::ref
