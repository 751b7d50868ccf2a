#pragma once

// ops/gelu.h for vectors, included by kernel sources (_cpu.cpp) alone.

#include "core/simd.h"

namespace ballast::ops::cpu::BALLAST_ISA {

// (1 + tanh u) / 2 = 1 / (1 + e^-2u): one exponential, and no digits lost where tanh u is near -1.
inline constexpr float kTwoK = 1.5957691216057308f;  // 2 sqrt(2 / pi)
inline simd::BALLAST_ISA::f32v exp_minus_2u(simd::BALLAST_ISA::f32v x) {
  return simd::BALLAST_ISA::exp(x * (x * x * 0.044715f + 1.0f) * -kTwoK);
}
inline simd::BALLAST_ISA::f32v gelu_of(simd::BALLAST_ISA::f32v x) {
  return x / (exp_minus_2u(x) + 1.0f);
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
