#pragma once

// Rows of one head on their way between tensors (f32 or bf16, strided) and padded f32 tiles, for
// attention's kernel sources. T is float or std::uint16_t (bf16). Conversions and single products
// are exact or rounded once, so plain loops give the same bits however the compiler vectorises
// them.

#include <cstdint>
#include <cstring>
#include <numeric>

#include "core/simd.h"
#include "core/simd_random.h"
#include "ops/attention/attention_cpu.h"
#include "ops/linear/tile_product.h"

namespace ballast::ops::cpu::BALLAST_ISA {

// Tiles of keys are padded to what both sides of a product are made of.
inline constexpr std::int64_t kKeyStep = std::lcm(kProductRows, kProductColumns);

inline std::int64_t round_up(std::int64_t n, std::int64_t step) {
  return (n + step - 1) / step * step;
}
inline std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

inline float widen(float x) { return x; }
inline float widen(std::uint16_t x) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(x) << 16);
}

inline void narrow(float x, float& to) { to = x; }
inline void narrow(float x, std::uint16_t& to) {  // to nearest even; a NaN stays one
  const std::uint32_t u = __builtin_bit_cast(std::uint32_t, x);
  const std::uint32_t nan = (u >> 16) | 0x40u;
  const std::uint32_t near = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  to = static_cast<std::uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : near);
}

template <class T, class Heads>
inline auto row_of(const Heads& x, std::int64_t row, std::int64_t head) {
  const std::int64_t at = row * x.row + head * x.head;
  if constexpr (requires { *x.data = {}; }) {
    return reinterpret_cast<T*>(x.data) + at;
  } else {
    return reinterpret_cast<const T*>(x.data) + at;
  }
}

// to = factor * rows [0, rows) of from; zero in columns [width, padded_width) and in rows
// [rows, padded_rows).
template <class T>
inline void load_rows(const T* from, std::int64_t from_stride, std::int64_t rows,
                      std::int64_t width, float factor, float* to, std::int64_t to_stride,
                      std::int64_t padded_rows, std::int64_t padded_width) {
  for (std::int64_t i = 0; i < padded_rows; ++i) {
    const std::int64_t n = i < rows ? width : 0;
    for (std::int64_t j = 0; j < n; ++j) {
      to[i * to_stride + j] = widen(from[i * from_stride + j]) * factor;
    }
    for (std::int64_t j = n; j < padded_width; ++j) to[i * to_stride + j] = 0;
  }
}

// Four elements as f32, and four such rows turned into columns; 4 x 4 suits every machine.
using f32x4 = float __attribute__((vector_size(16)));
template <class T>
inline f32x4 widen4(const T* from) {
  return f32x4{widen(from[0]), widen(from[1]), widen(from[2]), widen(from[3])};
}
inline void store_transposed(f32x4 r0, f32x4 r1, f32x4 r2, f32x4 r3, float* to,
                             std::int64_t stride) {
  const f32x4 a = __builtin_shufflevector(r0, r2, 0, 4, 1, 5);
  const f32x4 b = __builtin_shufflevector(r1, r3, 0, 4, 1, 5);
  const f32x4 c = __builtin_shufflevector(r0, r2, 2, 6, 3, 7);
  const f32x4 d = __builtin_shufflevector(r1, r3, 2, 6, 3, 7);
  const f32x4 columns[4] = {
      __builtin_shufflevector(a, b, 0, 4, 1, 5), __builtin_shufflevector(a, b, 2, 6, 3, 7),
      __builtin_shufflevector(c, d, 0, 4, 1, 5), __builtin_shufflevector(c, d, 2, 6, 3, 7)};
  for (int i = 0; i < 4; ++i) {
    *reinterpret_cast<simd::BALLAST_ISA::Unaligned<f32x4>::type*>(to + i * stride) = columns[i];
  }
}

// The transpose: to[j, i] = from[i, j], zero beyond width (now rows) and beyond rows (now columns).
template <class T>
inline void load_transposed(const T* from, std::int64_t from_stride, std::int64_t rows,
                            std::int64_t width, float* to, std::int64_t to_stride,
                            std::int64_t padded_rows, std::int64_t padded_width) {
  const std::int64_t whole_rows = rows / 4 * 4, whole_width = width / 4 * 4;
  for (std::int64_t i = 0; i < whole_rows; i += 4) {
    const T* in = from + i * from_stride;
    for (std::int64_t j = 0; j < whole_width; j += 4) {
      store_transposed(widen4(in + j), widen4(in + from_stride + j),
                       widen4(in + 2 * from_stride + j), widen4(in + 3 * from_stride + j),
                       to + j * to_stride + i, to_stride);
    }
  }
  for (std::int64_t j = 0; j < padded_width; ++j) {
    for (std::int64_t i = j < whole_width ? whole_rows : 0; i < padded_rows; ++i) {
      to[j * to_stride + i] = i < rows && j < width ? widen(from[i * from_stride + j]) : 0.0f;
    }
  }
}

// to = factor * from, one row.
template <class T>
inline void store_row(const float* from, std::int64_t width, float factor, T* to) {
  for (std::int64_t j = 0; j < width; ++j) narrow(from[j] * factor, to[j]);
}

// Columns [keys, padded_keys) of a tile of scores: no key, no weight.
inline void hide_columns(float* s, std::int64_t rows, std::int64_t keys, std::int64_t padded_keys) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = keys; j < padded_keys; ++j) s[i * kScoreStride + j] = -__builtin_inff();
  }
}

// A tile of scores of the queries from `first` and the keys from `key` on: the bias is added, keys
// behind the query are hidden.
inline void bias_and_mask(const BiasIn& bias, bool causal, std::int64_t queries, std::int64_t head,
                          std::int64_t first, std::int64_t rows, std::int64_t key,
                          std::int64_t keys, float* s) {
  for (std::int64_t i = 0; i < rows; ++i) {
    float* const row = s + i * kScoreStride;
    if (bias.data) {
      const float* const from = bias.data + head * bias.head + key - first - i + queries - 1;
      for (std::int64_t j = 0; j < keys; ++j) row[j] += from[j];
    }
    if (!causal) continue;
    const std::int64_t visible = first + i - key + 1;
    for (std::int64_t j = visible < 0 ? 0 : visible; j < keys; ++j) row[j] = -__builtin_inff();
  }
}

// visit(first, words) for pieces of the row of scores of a query and the keys [key, key + keys):
// the words of kRandomPiece keys from `first` on. key is a multiple of that, as tiles are.
template <class Visit>
inline void each_word(const DropRule& rule, std::int64_t head, std::int64_t query, std::int64_t key,
                      std::int64_t keys, Visit&& visit) {
  static_assert(kKeyTile % kRandomPiece == 0);
  const auto row = static_cast<std::uint64_t>((((rule.first_head + head) << 20) + query) << 20);
  std::uint32_t words[kRandomPiece];
  for (std::int64_t j = 0; j < keys; j += kRandomPiece) {
    simd::BALLAST_ISA::random_words(rule.source, row + static_cast<std::uint64_t>(key + j), words);
    visit(j, smaller(kRandomPiece, keys - j), words);
  }
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
