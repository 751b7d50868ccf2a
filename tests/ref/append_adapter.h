#pragma once

#include <cstdint>
#include <vector>

#include "core/to_size.h"

namespace ballast::ref {

// A [from_rows, from_columns] matrix times factor at `column` of a [rows, columns] one of zeros.
inline std::vector<double> append_adapter(const std::vector<double>& from, std::int64_t from_rows,
                                          std::int64_t from_columns, std::int64_t rows,
                                          std::int64_t columns, std::int64_t column,
                                          double factor) {
  std::vector<double> to(to_size(rows * columns), 0.0);
  for (std::int64_t i = 0; i < from_rows; ++i) {
    for (std::int64_t j = 0; j < from_columns; ++j) {
      to[to_size(i * columns + column + j)] = factor * from[to_size(i * from_columns + j)];
    }
  }
  return to;
}

}  // namespace ballast::ref
