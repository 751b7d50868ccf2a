#pragma once

// Roots and quotients of numbers that are neither huge nor tiny: rounded once, with the bits of
// __fsqrt_rn and __fdiv_rn, but without their branches, which keep a thread from working on more
// than one element at a time. Included by .cu files only.

#include "ops/kernels/cuda_kernel.cuh"

namespace ballast::ops::cuda {

#ifdef __CUDACC__

// x in [2^-100, 2^127) or zero, which shall not meet an infinite estimate: an estimate, then one
// step of Newton whose remainder is exact.
__device__ __forceinline__ float root_in_range(float x) {
  float estimate;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(estimate) : "f"(fmaxf(x, 0x1p-100f)));
  const float root = __fmul_rn(x, estimate), half = __fmul_rn(estimate, 0.5f);
  return __fmaf_rn(__fmaf_rn(-root, root, x), half, root);
}

// |a| in [2^-80, 2^80] or zero, b in [2^-40, 2^40]: the reciprocal is made better once, then the
// quotient; a negative zero would lose its sign.
__device__ __forceinline__ float quotient_in_range(float a, float b) {
  float estimate;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(estimate) : "f"(b));
  const float reciprocal = __fmaf_rn(__fmaf_rn(-b, estimate, 1.0f), estimate, estimate);
  const float quotient = __fmul_rn(a, reciprocal);
  const float exact = __fmaf_rn(__fmaf_rn(-b, quotient, a), reciprocal, quotient);
  return __uint_as_float((__float_as_uint(exact) & 0x7fffffffu) |
                         (__float_as_uint(a) & 0x80000000u));
}

// root_in_range of a number that is not zero.
__device__ __forceinline__ float root_of_normal(float x) {
  float estimate;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(estimate) : "f"(x));
  const float root = __fmul_rn(x, estimate), half = __fmul_rn(estimate, 0.5f);
  return __fmaf_rn(__fmaf_rn(-root, root, x), half, root);
}

// quotient_in_range for many numbers, or for one whose sign is safe: a negative zero loses its own.
struct Divisor {
  float b, reciprocal;
  explicit __device__ __forceinline__ Divisor(float x) : b(x) {
    float estimate;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(estimate) : "f"(x));
    reciprocal = __fmaf_rn(__fmaf_rn(-x, estimate, 1.0f), estimate, estimate);
  }
  __device__ __forceinline__ float of_unsigned_zero(float a) const {
    const float quotient = __fmul_rn(a, reciprocal);
    return __fmaf_rn(__fmaf_rn(-b, quotient, a), reciprocal, quotient);
  }
};

// Quotients times 2^-103, |a| <= x in [2^-70, 2^23]: those from 2^-23 on rounded once, and smaller
// ones with their sign, also where nothing else is left; a negative zero loses its own.
constexpr float kQuotientUnit = 0x1p-103f;
struct ScaledDivisor {
  float b, reciprocal;
  explicit __device__ __forceinline__ ScaledDivisor(float x) {
    const Divisor by(x);
    b = __fmul_rn(x, 0x1p103f);
    reciprocal = __fmul_rn(by.reciprocal, kQuotientUnit);
  }
  __device__ __forceinline__ float of(float a) const {
    const float quotient = __fmul_rn(a, reciprocal);
    return __fmaf_rn(__fmaf_rn(-b, quotient, a), reciprocal, quotient);
  }
};

// The third byte of each, from the lowest byte up.
__device__ __forceinline__ std::uint32_t third_bytes(std::uint32_t a, std::uint32_t b,
                                                     std::uint32_t c, std::uint32_t d) {
  return __byte_perm(__byte_perm(a, b, 0x0062), __byte_perm(c, d, 0x0062), 0x5410);
}

// As the special function unit has them.
__device__ __forceinline__ float fast_power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The fourth byte as the second one, zeros around it.
__device__ __forceinline__ std::uint32_t fourth_as_second(std::uint32_t x) {
  return __byte_perm(x, 0, 0x4434);
}
// The bits of a where the mask has ones, those of b elsewhere.
__device__ __forceinline__ std::uint32_t selected_bits(std::uint32_t mask, std::uint32_t a,
                                                       std::uint32_t b) {
  std::uint32_t y;
  asm("lop3.b32 %0, %1, %2, %3, 0xe2;" : "=r"(y) : "r"(a), "r"(mask), "r"(b));
  return y;
}
// 0xff for those of the four that have their highest bit set, from the lowest byte up.
__device__ __forceinline__ std::uint32_t sign_bytes(std::uint32_t a, std::uint32_t b,
                                                    std::uint32_t c, std::uint32_t d) {
  std::uint32_t low, high;
  asm("prmt.b32 %0, %1, %2, 0x00fb;" : "=r"(low) : "r"(a), "r"(b));
  asm("prmt.b32 %0, %1, %2, 0x00fb;" : "=r"(high) : "r"(c), "r"(d));
  return __byte_perm(low, high, 0x5410);
}

// The largest and the least of three that are not negative; NaN is the largest.
__device__ __forceinline__ float largest_of(float a, float b, float c) {
  return __int_as_float(__vimax3_s32(__float_as_int(a), __float_as_int(b), __float_as_int(c)));
}
__device__ __forceinline__ float least_of(float a, float b, float c) {
  return __int_as_float(__vimin3_s32(__float_as_int(a), __float_as_int(b), __float_as_int(c)));
}

// The larger one, or NaN where one of them is.
__device__ __forceinline__ float larger_or_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

#else

__device__ __forceinline__ float root_in_range(float x) { return __fsqrt_rn(x); }
__device__ __forceinline__ float root_of_normal(float x) { return __fsqrt_rn(x); }
__device__ __forceinline__ float quotient_in_range(float a, float b) { return __fdiv_rn(a, b); }
struct Divisor {
  float b;
  explicit __device__ Divisor(float x) : b(x) {}
  __device__ __forceinline__ float of_unsigned_zero(float a) const {
    return __fadd_rn(__fdiv_rn(a, b), 0.0f);
  }
};
constexpr float kQuotientUnit = 0x1p-103f;
struct ScaledDivisor {
  float b;
  explicit __device__ ScaledDivisor(float x) : b(x) {}
  __device__ __forceinline__ float of(float a) const {
    return a == 0 ? 0.0f : __fmul_rn(__fdiv_rn(a, b), kQuotientUnit);
  }
};
__device__ __forceinline__ std::uint32_t third_bytes(std::uint32_t a, std::uint32_t b,
                                                     std::uint32_t c, std::uint32_t d) {
  return (a >> 16 & 0xff) | (b >> 16 & 0xff) << 8 | (c >> 16 & 0xff) << 16 | (d >> 16 & 0xff) << 24;
}
__device__ __forceinline__ float fast_power_of_2(float x) { return exp2f(x); }
__device__ __forceinline__ float fast_reciprocal(float x) { return 1.0f / x; }
__device__ __forceinline__ std::uint32_t fourth_as_second(std::uint32_t x) { return x >> 24 << 8; }
__device__ __forceinline__ std::uint32_t selected_bits(std::uint32_t mask, std::uint32_t a,
                                                       std::uint32_t b) {
  return (a & mask) | (b & ~mask);
}
__device__ __forceinline__ std::uint32_t sign_bytes(std::uint32_t a, std::uint32_t b,
                                                    std::uint32_t c, std::uint32_t d) {
  return (a >> 31) * 0xffu | (b >> 31) * 0xff00u | (c >> 31) * 0xff0000u | (d >> 31) * 0xff000000u;
}
__device__ __forceinline__ float larger_or_nan(float a, float b) {
  return a != a || b != b ? __int_as_float(0x7fffffff) : a > b ? a : b;
}
__device__ __forceinline__ float largest_of(float a, float b, float c) {
  return larger_or_nan(larger_or_nan(a, b), c);
}
__device__ __forceinline__ float least_of(float a, float b, float c) {
  return fminf(fminf(a, b), c);
}

#endif

constexpr float kInfinity = __builtin_inff();

// Bits of 2^exponent: positive floats are ordered as their bits are.
__device__ constexpr std::uint32_t power_bits(int exponent) {
  return static_cast<std::uint32_t>(exponent + 127) << 23;
}

// The extremes of numbers by magnitude: zeros count as the largest for `least`, NaN as the largest
// for `most`.
struct Magnitudes {
  std::uint32_t least = ~0u, most = 0;
  __device__ __forceinline__ void take(float x) {
    const std::uint32_t bits = __float_as_uint(x) & 0x7fffffffu;
    least = min(least, bits - 1);
    most = max(most, bits);
  }
  // Every one is zero or in [2^low, 2^high).
  __device__ __forceinline__ bool between(int low, int high) const {
    return least >= power_bits(low) - 1 && most < power_bits(high);
  }
};

}  // namespace ballast::ops::cuda
