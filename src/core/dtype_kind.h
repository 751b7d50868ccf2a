#pragma once

#include <cstdint>

namespace ballast {

// The element types; core/dtype.h knows their names and sizes. Apart, for CUDA sources: they are
// C++17 and know nothing of fmt.
enum class DType : std::uint8_t {
  f64,
  f32,
  f16,
  bf16,
  f8_e4m3,
  f8_e5m2,
  i8,
  u8,
  i16,
  u16,
  i32,
  u32,
  i64,
  u64,
  boolean,
};

}  // namespace ballast
