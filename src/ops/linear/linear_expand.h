#pragma once

// Rows of narrow formats to f32 and back, for kernel sources. The recipes are
// core/simd_convert.h's; here they run over blocks of as many elements as fill a register in the
// narrow format (4 * kLanes bytes), which takes a fifth less time than widening kLanes bytes at
// once.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/dtype.h"
#include "core/simd_convert.h"
#include "core/to_size.h"

namespace ballast::ops::cpu::BALLAST_ISA {

namespace v = simd::BALLAST_ISA;
using v::f32v;
using v::i32v;
using v::kLanes;
using v::u32v;

using u8x4 = std::uint8_t __attribute__((vector_size(kLanes * 4)));  // four vectors' worth of bytes
using i8x4 = std::int8_t __attribute__((vector_size(kLanes * 4)));
using u16x4 = std::uint16_t __attribute__((vector_size(kLanes * 8)));
using i16x4 = std::int16_t __attribute__((vector_size(kLanes * 8)));
using u32x4 = std::uint32_t __attribute__((vector_size(kLanes * 16)));
using i32x4 = std::int32_t __attribute__((vector_size(kLanes * 16)));
using u16x2 =
    std::uint16_t __attribute__((vector_size(kLanes * 4)));  // two vectors' worth of halves
using u32x2 = std::uint32_t __attribute__((vector_size(kLanes * 8)));

// One format: kBlock elements in, kBlock / kLanes vectors out.
template <DType>
struct Format;

template <>
struct Format<DType::f32> {
  static constexpr int kBlock = kLanes;
  static void load(const void* p, f32v* out) { std::memcpy(out, p, sizeof *out); }
};
template <>
struct Format<DType::bf16> {
  static constexpr int kBlock = 2 * kLanes;
  static void load(const void* p, f32v* out) {
    u16x2 h;
    std::memcpy(&h, p, sizeof h);
    const u32x2 wide = __builtin_convertvector(h, u32x2) << 16;
    std::memcpy(out, &wide, sizeof wide);
  }
};
template <>
struct Format<DType::f16> {
  static constexpr int kBlock = 2 * kLanes;
  static void load(const void* p, f32v* out) {
    u16x2 h;
    u32v part[2];
    std::memcpy(&h, p, sizeof h);
    const u32x2 wide = __builtin_convertvector(h, u32x2);
    std::memcpy(part, &wide, sizeof wide);
    for (int i = 0; i < 2; ++i) out[i] = v::f16_to_f32(part[i]);
  }
};
inline void widen_bytes(const void* p, u32v* part) {
  u8x4 b;
  std::memcpy(&b, p, sizeof b);
  const u32x4 wide = __builtin_convertvector(__builtin_convertvector(b, u16x4), u32x4);
  std::memcpy(part, &wide, sizeof wide);
}
template <>
struct Format<DType::f8_e4m3> {
  static constexpr int kBlock = 4 * kLanes;
  static void load(const void* p, f32v* out) {
    u32v part[4];
    widen_bytes(p, part);
    for (int i = 0; i < 4; ++i) out[i] = v::f8_e4m3_to_f32(part[i]);
  }
};
template <>
struct Format<DType::f8_e5m2> {
  static constexpr int kBlock = 4 * kLanes;
  static void load(const void* p, f32v* out) {
    u32v part[4];
    widen_bytes(p, part);
    for (int i = 0; i < 4; ++i) out[i] = v::f8_e5m2_to_f32(part[i]);
  }
};
template <>
struct Format<DType::i8> {
  static constexpr int kBlock = 4 * kLanes;
  static void load(const void* p, f32v* out) {
    i8x4 b;
    i32v part[4];
    std::memcpy(&b, p, sizeof b);
    const i32x4 wide = __builtin_convertvector(__builtin_convertvector(b, i16x4), i32x4);
    std::memcpy(part, &wide, sizeof wide);
    for (int i = 0; i < 4; ++i) out[i] = __builtin_convertvector(part[i], f32v);
  }
};

template <DType kType>
void expand_as(const std::byte* src, std::int64_t n, float factor, float* dst) {
  using F = Format<kType>;
  constexpr std::size_t kSize = size_of(kType);
  f32v block[F::kBlock / kLanes];
  std::int64_t i = 0;
  for (; i + F::kBlock <= n; i += F::kBlock) {
    F::load(src + to_size(i) * kSize, block);
    for (f32v& b : block) b *= factor;
    std::memcpy(dst + i, block, sizeof block);
  }
  if (i < n) {
    std::byte last[F::kBlock * kSize] = {};
    std::memcpy(last, src + to_size(i) * kSize, to_size(n - i) * kSize);
    F::load(last, block);
    for (f32v& b : block) b *= factor;
    std::memcpy(dst + i, block, to_size(n - i) * sizeof(float));
  }
}

// dst[i] = factor * src[i] for n elements of any supported type; src may start at any address.
inline void expand(DType type, const std::byte* src, std::int64_t n, float factor, float* dst) {
  switch (type) {
    case DType::f32:
      return expand_as<DType::f32>(src, n, factor, dst);
    case DType::bf16:
      return expand_as<DType::bf16>(src, n, factor, dst);
    case DType::f16:
      return expand_as<DType::f16>(src, n, factor, dst);
    case DType::f8_e4m3:
      return expand_as<DType::f8_e4m3>(src, n, factor, dst);
    case DType::f8_e5m2:
      return expand_as<DType::f8_e5m2>(src, n, factor, dst);
    case DType::i8:
      return expand_as<DType::i8>(src, n, factor, dst);
    default:  // linear.cpp lets no other type through
      return;
  }
}

// Two vectors to bf16, to nearest, ties to even.
inline u16x2 round_to_bf16(const f32v* pair) {
  const u32v half[2] = {v::f32_to_bf16_code(pair[0]), v::f32_to_bf16_code(pair[1])};
  u32x2 wide;
  std::memcpy(&wide, half, sizeof wide);
  return __builtin_convertvector(wide, u16x2);
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
