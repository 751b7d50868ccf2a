#pragma once

namespace ballast::ref {

inline double relu(double x) { return x > 0 ? x : 0; }
inline double relu_slope(double x) { return x > 0 ? 1 : 0; }

}  // namespace ballast::ref
