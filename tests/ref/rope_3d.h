#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

namespace ballast::ref {

// [tokens, D/2, 2] cos and sin: of the c pairs c - 2 floor(c/3) turn with the frame, floor(c/3)
// each with row and column; pair i of an axis with n pairs by position * 10000^(-2i / 2n).
inline std::vector<double> rope_3d_table(std::array<std::int64_t, 3> grid,
                                         std::int64_t head_width) {
  const std::int64_t c = head_width / 2;
  const std::int64_t pairs[3] = {c - 2 * (c / 3), c / 3, c / 3};
  std::vector<double> table;
  for (std::int64_t f = 0; f < grid[0]; ++f) {
    for (std::int64_t h = 0; h < grid[1]; ++h) {
      for (std::int64_t w = 0; w < grid[2]; ++w) {
        const std::int64_t position[3] = {f, h, w};
        for (int axis = 0; axis < 3; ++axis) {
          for (std::int64_t i = 0; i < pairs[axis]; ++i) {
            const double n = 2.0 * static_cast<double>(pairs[axis]);
            const double angle = static_cast<double>(position[axis]) *
                                 std::pow(10000.0, -2.0 * static_cast<double>(i) / n);
            table.push_back(std::cos(angle));
            table.push_back(std::sin(angle));
          }
        }
      }
    }
  }
  return table;
}

// x is [L, heads, D]; turns pair (2j, 2j+1) of every head by the table's angle, or back.
inline std::vector<double> rope_3d(const std::vector<double>& x, std::size_t heads,
                                   std::size_t width, const std::vector<double>& table,
                                   bool inverse) {
  std::vector<double> y(x.size());
  for (std::size_t k = 0; k < x.size(); k += 2) {
    const std::size_t token = k / (heads * width), cos_sin = token * width + k % width;
    const double cos = table[cos_sin], sin = inverse ? -table[cos_sin + 1] : table[cos_sin + 1];
    y[k] = x[k] * cos - x[k + 1] * sin;
    y[k + 1] = x[k] * sin + x[k + 1] * cos;
  }
  return y;
}

}  // namespace ballast::ref
