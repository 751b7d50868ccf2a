#pragma once

#include "tests/ref/gelu.h"

namespace ballast::ref {

inline double gated_gelu(double a, double b) { return gelu(a) * b; }
inline double gated_gelu_da(double a, double b) { return gelu_slope(a) * b; }
inline double gated_gelu_db(double a) { return gelu(a); }

}  // namespace ballast::ref
