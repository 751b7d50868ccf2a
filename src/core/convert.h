#pragma once

// Number formats: f64 f32 f16 bf16 f8_e4m3 (the "fn" format: no infinity, 448 is the largest)
// f8_e5m2.
//
// Floating dtypes convert to each other with one rounding, to nearest, ties to even; subnormals are
// kept, the sign of zero too. A NaN stays a NaN: narrowed it is 7fc0 in bf16, 7e00 in f16 and 7f in
// the 8-bit formats (these with its sign). Overflow follows Rounding (core/simd_convert.h). f64
// reaches the narrow formats through an f32 rounded to odd, which leaves the second rounding
// exactly the choice the first had.

#include <array>
#include <cstdint>

#include "core/dtype.h"
#include "core/simd_convert.h"

namespace ballast {

// Between any two floating dtypes; from i8 u8 i16 u16 bool to any floating dtype (bool: 0 or 1);
// from i32 u32 i64 u64 to f32 and f64 (rounded to nearest beyond 2^24 and 2^53); and any dtype to
// itself.
bool convertible(DType from, DType to);

// n elements. The memory may start at any byte and must not overlap. Equal dtypes keep every bit.
void convert(const void* from, DType from_type, void* to, DType to_type, std::int64_t n,
             Rounding rounding = Rounding::nearest);

// One element of a floating dtype other than f64; bits stand in the low bytes.
float to_f32(std::uint32_t bits, DType type);
std::uint32_t from_f32(float x, DType type, Rounding rounding = Rounding::nearest);

float largest(DType type);  // finite value of f32 f16 bf16 f8_e4m3 f8_e5m2

// The value of each code of f8_e4m3 or f8_e5m2.
const std::array<float, 256>& f8_values(DType type);

}  // namespace ballast
