#pragma once

// What attention's checks (attention.cpp) hand to its vector kernels: plain pointers and sizes, so
// that the kernel sources share no inline function with the rest of the program.

#include <cstddef>
#include <cstdint>

#include "core/random.h"

namespace ballast::ops::cpu {

// Keys are taken in tiles of kKeyTile; this decides the bits. Queries are taken in tiles too, which
// decides nothing but speed: 192 queries make up for the transposition of a key tile, 96 leave the
// larger working set of backward in a 1 MiB cache (at head width 128). All are multiples of the
// steps of ops/linear/tile_product.h on every machine.
inline constexpr std::int64_t kKeyTile = 192;
inline constexpr std::int64_t kForwardQueryTile = 192;
inline constexpr std::int64_t kBackwardQueryTile = 96;
// 16 more than the columns: rows that are a power of two apart would fall on the same cache lines.
inline constexpr std::int64_t kScoreStride = kKeyTile + 16;

// A view [L, H, D] of f32 (float) or bf16 (std::uint16_t) elements; strides in elements.
struct HeadsIn {
  const std::byte* data;
  std::int64_t row, head;
};
struct HeadsOut {
  std::byte* data;
  std::int64_t row, head;
};

// Where the tiles of one task lie in its scratch memory, in floats from its start.
struct ForwardScratch {
  std::int64_t row;             // stride of tiles that are D wide
  std::int64_t q, kt, v, s, o;  // [queries, D], [D, keys], [keys, D], [queries, keys], as q
  std::int64_t max, sum;        // [queries]
  std::int64_t floats;          // of one task
};
struct BackwardScratch {
  std::int64_t row;
  std::int64_t q, dout, dq;        // [queries, D]
  std::int64_t k, kt, vt, dk, dv;  // [keys, D], transposed where the name ends in t
  std::int64_t p, ds;              // [queries, keys]
  std::int64_t delta;              // [Lq]
  std::int64_t dq_sum;             // [Lq, D], only when dq is bf16
  std::int64_t floats;
};

// [H, Lq + Lk - 1]: what the score of query i and key j gets is head's entry j - i + Lq - 1.
struct BiasIn {
  const float* data = nullptr;  // null: none
  std::int64_t head = 0;
};
struct BiasOut {
  float* data = nullptr;
  std::int64_t head = 0;
};

// Weights of the words below the threshold are dropped, the others scaled.
struct DropRule {
  bool on = false;
  RandomSource source = {};
  std::uint32_t threshold = 0;
  float scale = 1;
  std::int64_t first_head = 0;
};

struct ForwardCall {
  HeadsIn q, k, v;
  HeadsOut o;
  float* lse;
  std::int64_t lse_head;  // stride of heads
  float* workspace;
  ForwardScratch scratch;
  std::int64_t queries, keys, heads, width;  // keys: those that take part
  float scale;
  bool bf16;
  BiasIn bias;
  bool causal;
  DropRule drop;
};

struct BackwardCall {
  HeadsIn q, k, v, o, dout;
  const float* lse;
  std::int64_t lse_head;
  HeadsOut dq, dk, dv;
  float* workspace;
  BackwardScratch scratch;
  std::int64_t queries, keys, all_keys, heads, width;
  float scale;
  bool bf16;
  BiasIn bias;
  BiasOut dbias;
  bool causal;
  DropRule drop;
};

}  // namespace ballast::ops::cpu
