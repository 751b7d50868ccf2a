#pragma once

// The number formats by definition: values in double, rounding with nearbyint on the format's grid.

#include <cmath>
#include <cstdint>
#include <limits>

#include "core/dtype.h"
#include "core/simd_convert.h"

namespace ballast::ref {

struct Format {
  int mantissa;      // bits behind the point
  int min_exponent;  // of the smallest normal
  int bits;
  double largest;
  bool infinity;
};

inline Format format_of(DType t) {
  switch (t) {
    case DType::bf16:
      return {7, -126, 16, 0x1.fep127, true};
    case DType::f16:
      return {10, -14, 16, 65504.0, true};
    case DType::f8_e4m3:
      return {3, -6, 8, 448.0, false};
    case DType::f8_e5m2:
      return {2, -14, 8, 57344.0, true};
    default:
      return {23, -126, 32, std::numeric_limits<float>::max(), true};
  }
}

// The value of a code.
inline double decode(std::uint32_t code, DType t) {
  const Format f = format_of(t);
  const std::uint32_t sign = code >> (f.bits - 1) & 1u;
  const std::uint32_t m = code & ((1u << f.mantissa) - 1u);
  const int exponent_bits = f.bits - 1 - f.mantissa;
  const auto e = static_cast<int>(code >> f.mantissa & ((1u << exponent_bits) - 1u));
  const int top = (1 << exponent_bits) - 1;
  double a;
  if (f.infinity && e == top) {
    a = m == 0 ? std::numeric_limits<double>::infinity() : std::nan("");
  } else if (!f.infinity && e == top && m == (1u << f.mantissa) - 1u) {
    a = std::nan("");
  } else if (e == 0) {
    a = std::ldexp(m, f.min_exponent - f.mantissa);
  } else {
    a = std::ldexp(m + (1u << f.mantissa), f.min_exponent + e - 1 - f.mantissa);
  }
  return sign ? -a : a;
}

// x rounded once to the format; infinity stands for overflow of any kind.
inline double round(double x, DType t, Rounding rounding) {
  const Format f = format_of(t);
  if (std::isnan(x)) return x;
  double r = x;
  if (x != 0 && !std::isinf(x)) {
    const int e = std::max(std::ilogb(x), f.min_exponent);
    r = std::ldexp(std::nearbyint(std::ldexp(x, f.mantissa - e)), e - f.mantissa);
  }
  if (std::fabs(r) <= f.largest) return r;
  if (rounding == Rounding::saturating) return std::copysign(f.largest, x);
  return f.infinity ? std::copysign(std::numeric_limits<double>::infinity(), x) : std::nan("");
}

}  // namespace ballast::ref
