#include "core/shape.h"

#include <fmt/ranges.h>

namespace ballast {

std::string to_string(const Shape& s) { return fmt::format("[{}]", fmt::join(s, ", ")); }

Shape row_major(const Shape& shape) {
  Shape strides = shape;
  std::int64_t step = 1;
  for (int i = shape.rank(); i-- > 0;) {
    strides[i] = step;
    step *= shape[i];
  }
  return strides;
}

}  // namespace ballast
