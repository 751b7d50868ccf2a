#pragma once

// core/convert.h for kernels: the same integer recipes, so that the GPU writes the bits that the
// CPU writes, also for NaN, overflow and subnormals. Included by .cu files only.

#include "ops/kernels/cuda_kernel.cuh"

namespace ballast::ops::cuda {

template <DType T>
struct Code {
  static constexpr DType value = T;
};

__host__ __device__ constexpr int bytes_of(DType t) {
  switch (t) {
    case DType::f64:
    case DType::i64:
    case DType::u64:
      return 8;
    case DType::f32:
    case DType::i32:
    case DType::u32:
      return 4;
    case DType::f16:
    case DType::bf16:
    case DType::i16:
    case DType::u16:
      return 2;
    default:
      return 1;
  }
}

// --- to f32; code stands in the low bits.

__device__ __forceinline__ float f16_to_f32(std::uint32_t h) {
  const std::uint32_t magnitude = (h & 0x7fffu) << 13;
  std::uint32_t a = magnitude + (112u << 23);
  if (magnitude < (1u << 23)) {
    a = __float_as_uint(__uint_as_float(magnitude + (113u << 23)) - 0x1p-14f);
  }
  if (magnitude >= (31u << 23)) a = magnitude | 0x7f800000u;
  return __uint_as_float(a | ((h & 0x8000u) << 16));
}

__device__ __forceinline__ float f8_e4m3_to_f32(std::uint32_t b) {
  const std::uint32_t code = b & 0x7fu, magnitude = code << 20;
  std::uint32_t a = magnitude + (120u << 23);
  if (code < 8u) a = __float_as_uint(__uint_as_float(magnitude + (121u << 23)) - 0x1p-6f);
  if (code == 0x7fu) a = 0x7fc00000u;
  return __uint_as_float(a | ((b & 0x80u) << 24));
}

template <DType T>
__device__ __forceinline__ float widen(std::uint32_t code) {
  if constexpr (T == DType::f32) {
    return __uint_as_float(code);
  } else if constexpr (T == DType::bf16) {
    return __uint_as_float(code << 16);
  } else if constexpr (T == DType::f16) {
    return f16_to_f32(code);
  } else if constexpr (T == DType::f8_e4m3) {
    return f8_e4m3_to_f32(code);
  } else if constexpr (T == DType::f8_e5m2) {
    return f16_to_f32(code << 8);
  } else if constexpr (T == DType::i8) {
    return static_cast<float>(static_cast<std::int8_t>(code));
  } else if constexpr (T == DType::i16) {
    return static_cast<float>(static_cast<std::int16_t>(code));
  } else if constexpr (T == DType::boolean) {
    return code != 0 ? 1.0f : 0.0f;
  } else {
    static_assert(T == DType::u8 || T == DType::u16, "one or two bytes, or f32");
    return static_cast<float>(code);
  }
}

// --- from f32. saturating: overflow gives the largest finite value; else infinity, NaN in f8_e4m3.

__device__ __forceinline__ std::uint32_t clamp_magnitude(std::uint32_t a, std::uint32_t largest,
                                                         bool saturating) {
  return saturating && a > largest && a <= 0x7f800000u ? largest : a;
}

template <DType T>
__device__ __forceinline__ std::uint32_t narrow(float v, bool saturating) {
  const std::uint32_t u = __float_as_uint(v), magnitude = u & 0x7fffffffu;
  if constexpr (T == DType::f32) {
    return u;
  } else if constexpr (T == DType::bf16) {
    const std::uint32_t a = clamp_magnitude(magnitude, 0x7f7f0000u, saturating);
    if (a > 0x7f800000u) return 0x7fc0u;
    return ((a | (u & 0x80000000u)) + 0x7fffu + ((a >> 16) & 1u)) >> 16;
  } else if constexpr (T == DType::f16) {
    const std::uint32_t a = clamp_magnitude(magnitude, 0x477fe000u, saturating);
    std::uint32_t code = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
    if (a < 0x38800000u) code = __float_as_uint(__uint_as_float(a) + 0.5f) - 0x3f000000u;
    if (a >= 0x47800000u) code = a > 0x7f800000u ? 0x7e00u : 0x7c00u;
    return code | ((u >> 16) & 0x8000u);
  } else if constexpr (T == DType::f8_e4m3) {
    const std::uint32_t a = clamp_magnitude(magnitude, 0x43e00000u, saturating);
    std::uint32_t code = (a - 0x3c000000u + 0x7ffffu + ((a >> 20) & 1u)) >> 20;
    if (a < 0x3c800000u) code = __float_as_uint(__uint_as_float(a) + 0x1p14f) - 0x46800000u;
    if (a >= 0x43f00000u) code = 0x7fu;
    return code | ((u >> 24) & 0x80u);
  } else {
    static_assert(T == DType::f8_e5m2, "a floating dtype of at most four bytes");
    const std::uint32_t a = clamp_magnitude(magnitude, 0x47600000u, saturating);
    std::uint32_t code = (a - 0x38000000u + 0xfffffu + ((a >> 21) & 1u)) >> 21;
    if (a < 0x38800000u) code = __float_as_uint(__uint_as_float(a) + 0x1p7f) - 0x43000000u;
    if (a >= 0x47800000u) code = a > 0x7f800000u ? 0x7fu : 0x7cu;
    return code | ((u >> 24) & 0x80u);
  }
}

// --- f64. The conversion instructions forget a NaN's sign and payload; a CPU's do not.

__device__ __forceinline__ std::uint32_t f64_to_f32_bits(double x) {
  const auto u = static_cast<std::uint64_t>(__double_as_longlong(x));
  if (x != x) {
    return static_cast<std::uint32_t>(u >> 32 & 0x80000000u) | 0x7fc00000u |
           static_cast<std::uint32_t>(u >> 29 & 0x3fffffu);
  }
  return __float_as_uint(__double2float_rn(x));
}

__device__ __forceinline__ std::uint64_t f32_to_f64_bits(float x) {
  const std::uint64_t u = __float_as_uint(x);
  if (x != x) {
    return (u & 0x80000000u) << 32 | 0x7ff8000000000000u | (u & 0x3fffffu) << 29;
  }
  return static_cast<std::uint64_t>(__double_as_longlong(static_cast<double>(x)));
}

// Toward zero, and the last bit set when anything was lost (core/convert_cpu.cpp).
__device__ __forceinline__ float round_to_odd(double x) {
  const std::uint32_t b = f64_to_f32_bits(x);
  const double back = static_cast<double>(__uint_as_float(b));
  const bool inexact = back < x || back > x, away = fabs(back) > fabs(x);
  return __uint_as_float((b - (away ? 1u : 0u)) | (inexact ? 1u : 0u));
}

// --- any convertible pair, chosen at run time; bits stand in the low bytes.

__device__ __forceinline__ float small_to_f32(std::uint32_t code, DType t) {
  switch (t) {
    case DType::f32:
      return widen<DType::f32>(code);
    case DType::f16:
      return widen<DType::f16>(code);
    case DType::bf16:
      return widen<DType::bf16>(code);
    case DType::f8_e4m3:
      return widen<DType::f8_e4m3>(code);
    case DType::f8_e5m2:
      return widen<DType::f8_e5m2>(code);
    case DType::i8:
      return widen<DType::i8>(code);
    case DType::i16:
      return widen<DType::i16>(code);
    case DType::boolean:
      return widen<DType::boolean>(code);
    default:
      return static_cast<float>(code);  // u8, u16
  }
}

__device__ __forceinline__ std::uint32_t f32_to_small(float x, DType t, bool saturating) {
  switch (t) {
    case DType::f32:
      return narrow<DType::f32>(x, saturating);
    case DType::f16:
      return narrow<DType::f16>(x, saturating);
    case DType::bf16:
      return narrow<DType::bf16>(x, saturating);
    case DType::f8_e4m3:
      return narrow<DType::f8_e4m3>(x, saturating);
    default:
      return narrow<DType::f8_e5m2>(x, saturating);
  }
}

template <class Integer>
__device__ __forceinline__ std::uint64_t integer_to(Integer x, DType to) {
  if (to == DType::f32) return __float_as_uint(static_cast<float>(x));
  return static_cast<std::uint64_t>(__double_as_longlong(static_cast<double>(x)));
}

__device__ __forceinline__ std::uint64_t converted(std::uint64_t code, DType from, DType to,
                                                   bool saturating) {
  switch (from) {
    case DType::i32:
      return integer_to(static_cast<std::int32_t>(code), to);
    case DType::u32:
      return integer_to(static_cast<std::uint32_t>(code), to);
    case DType::i64:
      return integer_to(static_cast<long long>(code), to);
    case DType::u64:
      return integer_to(static_cast<unsigned long long>(code), to);
    case DType::f64: {
      const double x = __longlong_as_double(static_cast<long long>(code));
      if (to != DType::f32) return f32_to_small(round_to_odd(x), to, saturating);
      const std::uint32_t u = f64_to_f32_bits(x);
      return saturating && (u & 0x7fffffffu) == 0x7f800000u ? u - 1 : u;
    }
    default: {
      const float x = small_to_f32(static_cast<std::uint32_t>(code), from);
      return to == DType::f64 ? f32_to_f64_bits(x) : f32_to_small(x, to, saturating);
    }
  }
}

// --- one element at any address. aligned: to its size.

__device__ __forceinline__ std::uint64_t load_code(const unsigned char* p, int size, bool aligned) {
  if (aligned) {
    switch (size) {
      case 1:
        return *p;
      case 2:
        return *reinterpret_cast<const std::uint16_t*>(p);
      case 4:
        return *reinterpret_cast<const std::uint32_t*>(p);
      default:
        return *reinterpret_cast<const std::uint64_t*>(p);
    }
  }
  std::uint64_t code = 0;
  for (int i = 0; i < size; ++i) code |= static_cast<std::uint64_t>(p[i]) << (8 * i);
  return code;
}

__device__ __forceinline__ void store_code(unsigned char* p, std::uint64_t code, int size,
                                           bool aligned) {
  if (aligned) {
    switch (size) {
      case 1:
        *p = static_cast<unsigned char>(code);
        return;
      case 2:
        *reinterpret_cast<std::uint16_t*>(p) = static_cast<std::uint16_t>(code);
        return;
      case 4:
        *reinterpret_cast<std::uint32_t*>(p) = static_cast<std::uint32_t>(code);
        return;
      default:
        *reinterpret_cast<std::uint64_t*>(p) = code;
        return;
    }
  }
  for (int i = 0; i < size; ++i) p[i] = static_cast<unsigned char>(code >> (8 * i));
}

inline bool aligned_to(const void* p, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(p) % static_cast<std::uintptr_t>(bytes) == 0;
}

}  // namespace ballast::ops::cuda
