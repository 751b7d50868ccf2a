#pragma once

// How parameters are rounded, one number at a time.

#include <cmath>

#include "core/dtype.h"

namespace ballast::ref {

// Nearest bf16 (8 significant bits), ties to even; x is a normal number or 0.
inline double nearest_bf16(double x) {
  if (x == 0) return x;
  int exponent = 0;
  std::frexp(x, &exponent);  // |x| = 0.5 ... 1 times 2^exponent
  return std::ldexp(std::nearbyint(std::ldexp(x, 8 - exponent)), exponent - 8);
}
inline double nearest(double x, DType t) {
  return t == DType::bf16 ? nearest_bf16(x) : static_cast<double>(static_cast<float>(x));
}

// p += change with what is lost kept in carry; base is p before the change.
inline double kahan(double base, double change, double& carry, DType t) {
  const double c = carry + change;
  const double p = nearest(base + c, t);
  carry = nearest(c + (base - p), t);
  return p;
}

}  // namespace ballast::ref
