#pragma once

#include <cstddef>
#include <cstdint>

namespace ballast::ops {

// w[n, k] is multiplied by data[n * row_stride + k / group * group_stride].
struct WeightScale {
  const std::byte* data = nullptr;  // f32 at any address, or none
  std::int64_t row_stride = 0, group_stride = 0, group = 1;
};

}  // namespace ballast::ops
