#pragma once

#include <cstdint>
#include <vector>

#include "core/shape.h"
#include "core/to_size.h"
#include "ops/space_to_depth.h"

namespace ballast::ref {

// f(index of the wide element, index of the folded one that stands for it) for every wide element.
template <class F>
void each_of_block(const Shape& wide, const Shape& folded, const ops::BlockShape& b, F&& f) {
  const std::int64_t group = wide[3] * b.time * b.space * b.space / folded[3];
  std::size_t at = 0;
  for (std::int64_t t = 0; t < wide[0]; ++t) {
    for (std::int64_t y = 0; y < wide[1]; ++y) {
      for (std::int64_t x = 0; x < wide[2]; ++x) {
        for (std::int64_t c = 0; c < wide[3]; ++c, ++at) {
          const std::int64_t a = (t + b.lead) % b.time, p = y % b.space, q = x % b.space;
          const std::int64_t slow = b.columns_first ? q : p, fast = b.columns_first ? p : q;
          const std::int64_t flat = ((c * b.time + a) * b.space + slow) * b.space + fast;
          const std::int64_t position =
              ((t + b.lead) / b.time * folded[1] + y / b.space) * folded[2] + x / b.space;
          f(at, to_size(position * folded[3] + flat / group));
        }
      }
    }
  }
}

inline std::vector<double> space_to_depth(const Shape& wide, const Shape& folded,
                                          const ops::BlockShape& b, const std::vector<double>& x,
                                          double scale) {
  std::vector<double> y(to_size(folded.elements()));
  each_of_block(wide, folded, b, [&](std::size_t w, std::size_t f) { y[f] += scale * x[w]; });
  return y;
}

inline std::vector<double> depth_to_space(const Shape& wide, const Shape& folded,
                                          const ops::BlockShape& b, const std::vector<double>& x,
                                          double scale) {
  std::vector<double> y(to_size(wide.elements()));
  each_of_block(wide, folded, b, [&](std::size_t w, std::size_t f) { y[w] = scale * x[f]; });
  return y;
}

}  // namespace ballast::ref
