#pragma once

// What fp8_linear.cpp hands to the vector kernel of fp8_linear_cpu.cpp.

#include <cstddef>
#include <cstdint>

#include "core/simd.h"

namespace ballast {
class ThreadPool;
}

namespace ballast::ops::cpu {

struct WidenRows {                  // to[r, c] = from[r, c] * scale[r]
  const std::byte* from = nullptr;  // f8_e4m3
  std::int64_t stride = 0;          // elements from row to row
  const float* scale = nullptr;
  float* to = nullptr;  // packed
  std::int64_t rows = 0, columns = 0;
};
BALLAST_PER_ISA(void widen_rows(const WidenRows& a, ThreadPool& pool))

}  // namespace ballast::ops::cpu
