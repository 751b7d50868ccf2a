#pragma once

// ops/gelu.h for an element, included by .cu files only. Memory feeds a multiprocessor some four
// elements a cycle, so an element may cost about 30 instructions, of which the packing takes some:
// powers of two and reciprocals are those of the special function unit (two units in the last
// place; zero where the divisor is beyond 2^126, as close as f32 can tell). What an exponent near
// 128 loses by its own rounding is many times that.

#include "ops/kernels/rounded_math_cuda.cuh"

namespace ballast::ops::cuda {

// (1 + tanh u) / 2 = 1 / (1 + e^-2u): one exponential, and no digits lost where tanh u is near -1.
constexpr float kTwoK = 1.5957691216057308f;  // 2 sqrt(2 / pi)
constexpr float kLog2E = 1.4426950408889634f;
__device__ __forceinline__ float exp_minus_2u(float x) {
  return fast_power_of_2(x * (x * x * (0.044715f * -kTwoK * kLog2E) - kTwoK * kLog2E));
}
__device__ __forceinline__ float gelu_of(float x) {
  return x * fast_reciprocal(exp_minus_2u(x) + 1.0f);
}

}  // namespace ballast::ops::cuda
