#pragma once

// What forward and backward of fused attention share: tiles of 64 rows of a head in shared memory,
// which scores there are and what becomes of them. Included by .cu files only.

#include "ops/attention/attention_cuda.h"
#include "ops/kernels/random_cuda.cuh"
#include "ops/kernels/tensor_core.cuh"

namespace ballast::ops::cuda {

constexpr int kHeadWidth = 64;
constexpr int kTileRows = 64;
constexpr int kSteps = kHeadWidth / 16;
constexpr int kTileChunks = kTileRows * kHeadWidth / 8;  // of 16 bytes
constexpr float kInfinity = __builtin_huge_valf();
constexpr float kLog2e = 1.4426950408889634f;

// [L, H, 64] bf16.
struct HeadRows {
  bf16* data;
  std::int64_t row, head;
  bool in_chunks;  // every row of every head begins at a multiple of 16 bytes

  explicit HeadRows(const View& v)
      : data(static_cast<bf16*>(v.data)),
        row(v.strides[0]),
        head(v.strides[1]),
        in_chunks(reinterpret_cast<std::uintptr_t>(v.data) % 16 == 0 && v.strides[0] % 8 == 0 &&
                  v.strides[1] % 8 == 0) {}
  __device__ bf16* at(int i, int h) const { return data + i * row + h * head; }
};

// Eight rows' chunks of one number lie in eight different places of a row: loads of matrices meet
// no bank twice.
__device__ __forceinline__ int chunk_at(int row, int chunk) { return row * 8 + (chunk ^ row % 8); }

// tile = rows [first, first + 64) of head h, 0 from row `end` on; by all threads of a block.
template <int kThreads>
__device__ __forceinline__ void start_tile(uint4* tile, const HeadRows& x, int h, int first,
                                           int end) {
  const int chunk = threadIdx.x % 8;
  const auto each_row = [&](auto&& copy) {
#pragma unroll
    for (int k = 0; k < kTileChunks / kThreads; ++k) {
      const int row = threadIdx.x / 8 + k * (kThreads / 8);
      const bool real = first + row < end;
      copy(tile + chunk_at(row, chunk), x.at(real ? first + row : 0, h) + chunk * 8, real);
    }
  };
  if (x.in_chunks) {
    each_row([](uint4* to, const bf16* from, bool real) { start_copy(to, from, real); });
  } else {
    each_row([](uint4* to, const bf16* from, bool real) {
#pragma unroll 1
      for (int e = 0; e < 8; ++e) {
        reinterpret_cast<bf16*>(to)[e] = real ? from[e] : from_float<bf16>(0);
      }
    });
  }
}

// A warp's 16 rows from `first` on as left matrices, 0 from row `end` on. Once per block: what the
// loads lack in width the cache makes up for.
__device__ __forceinline__ void fetch_rows(LeftMatrix (&to)[kSteps], const HeadRows& x, int h,
                                           int first, int end) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first + lane / 4 + 8 * r;
    const bf16* const from = x.at(row < end ? row : 0, h) + lane % 4 * 2;
#pragma unroll
    for (int k = 0; k < 2 * kSteps; ++k) {
      unsigned pair = 0;
      if (row < end) {
        if (x.in_chunks) {
          pair = *reinterpret_cast<const unsigned*>(from + 8 * k);
        } else {
          pair = pack_bf16(to_float(from[8 * k]), to_float(from[8 * k + 1]));
        }
      }
      to[k / 2].x[k % 2 * 2 + r] = pair;
    }
  }
}

// sum [16, 8 n] += left [16, 64] x rows^T, rows [row, row + 8 n) of the tile.
template <int kColumns>
__device__ __forceinline__ void multiply_rows(float (&sum)[kColumns][4],
                                              const LeftMatrix (&left)[kSteps], const uint4* tile,
                                              int row) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
#pragma unroll
    for (int n = 0; n < kColumns; n += 2) {
      unsigned b[4];
      load_matrices(b,
                    tile + chunk_at(row + n * 8 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
      multiply_add(sum[n], left[k], b[0], b[1]);
      multiply_add(sum[n + 1], left[k], b[2], b[3]);
    }
  }
}

// sum [16, 64] += weights [16, 8 n] x rows [row, row + 8 n) of the tile; weights are rounded.
template <int kRows>
__device__ __forceinline__ void add_rows(float (&sum)[8][4], const float (&weights)[kRows][4],
                                         const uint4* tile, int row) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < kRows; k += 2) {
    const LeftMatrix left = {{pack_bf16(weights[k][0], weights[k][1]),
                              pack_bf16(weights[k][2], weights[k][3]),
                              pack_bf16(weights[k + 1][0], weights[k + 1][1]),
                              pack_bf16(weights[k + 1][2], weights[k + 1][3])}};
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
      unsigned b[4];
      load_transposed(b, tile + chunk_at(row + k * 8 + lane % 16, n + lane / 16));
      multiply_add(sum[n], left, b[0], b[1]);
      multiply_add(sum[n + 1], left, b[2], b[3]);
    }
  }
}

// Rows g and g + 8 of a warp's 16, from `first` on, those before `end`.
__device__ __forceinline__ void store_rows(const HeadRows& to, int h, int first, int end,
                                           const float (&sum)[8][4], float upper, float lower) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first + lane / 4 + 8 * r;
    if (row >= end) continue;
    bf16* const at = to.at(row, h) + lane % 4 * 2;
    const float factor = r == 0 ? upper : lower;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float a = sum[n][2 * r] * factor, b = sum[n][2 * r + 1] * factor;
      if (to.in_chunks) {
        *reinterpret_cast<unsigned*>(at + n * 8) = pack_bf16(a, b);
      } else {
        at[n * 8] = from_float<bf16>(a), at[n * 8 + 1] = from_float<bf16>(b);
      }
    }
  }
}

// Over the four lanes that share a row.
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// What turns products q k^T into scores of keys that take part.
struct TileRule {
  int heads, queries, keys;  // heads: of all samples
  const float* bias;         // entry h * bias_head - i + j of a sample's head, or none
  std::int64_t bias_head;
  float scale;
  bool causal;
  AttentionDrop drop;
  ScoreSamples samples;
};

// A head of the call: whose it is.
struct OwnHead {
  int own, sample, length;
  const float* bias;

  __device__ OwnHead(const TileRule& r, int h) {
    const int all = static_cast<int>(r.samples.first) + h;
    const int heads = static_cast<int>(r.samples.heads);
    sample = all / heads, own = all % heads;
    length = r.samples.lengths[sample];
    bias = r.bias ? r.bias + own * r.bias_head : nullptr;
  }
  // Keys that any of `rows` queries from `first` on sees: [0, end).
  __device__ int keys_seen(const TileRule& r, int first, int rows) const {
    return r.causal && first + rows < length ? first + rows : length;
  }
};

// The bias between `queries` queries and 64 keys, in powers of 2: entry n is for key - query =
// n - (queries - 1), both counted from their first. What no pair of query and key has is 0.
template <int kQueries>
__device__ __forceinline__ float fetch_bias(const TileRule& r, const OwnHead& head, int query,
                                            int key) {
  const int distance = key - query + static_cast<int>(threadIdx.x) - (kQueries - 1);
  const bool real = head.bias && distance > -r.queries && distance < r.keys;
  return real ? head.bias[distance] * kLog2e : 0.0f;
}

// Products become scores, in powers of 2. bias(n, k): of element k of the n-th eight columns. A
// lane needs the same distance for row g and for row g + 8, eight columns further: the compiler
// sees it.
template <int kColumns, class Bias>
__device__ __forceinline__ void add_bias(float (&s)[kColumns][4], float scale, Bias&& bias) {
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
#pragma unroll
    for (int k = 0; k < 4; ++k) s[n][k] = fmaf(s[n][k], scale, bias(n, k));
  }
}

// Scores of pairs that take no part. Apart from the rest, and only where a tile has such pairs: a
// question for every score would keep the others from being worked on side by side.
template <int kColumns, class Hidden>
__device__ __forceinline__ void hide(float (&s)[kColumns][4], Hidden&& hidden) {
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
#pragma unroll
    for (int k = 0; k < 4; ++k) s[n][k] = hidden(n, k) ? -kInfinity : s[n][k];
  }
}

// Random words of the scores that a lane has of [16, 8] scores, rows being queries: element
// (row g + 8 r, column 2 t + b) at 2 r + b. Neighbours in t need the halves of two blocks of four:
// each makes one of them.
struct ScoreWords {
  RandomKey key;
  std::uint64_t head;

  __device__ ScoreWords(const TileRule& r, const OwnHead& h)
      : key(r.drop.source), head(static_cast<std::uint64_t>(r.drop.first_head + h.own) << 40) {
    key.site = r.samples.sites[h.sample];
  }
  __device__ uint4 block(int query, int j) const {  // j: a multiple of 4
    return random_block(
        key, (head + (static_cast<std::uint64_t>(query) << 20) + static_cast<unsigned>(j)) / 4);
  }
  __device__ void by_query(int query, int j, std::uint32_t (&words)[4]) const {
    const int lane = threadIdx.x % 32, odd = lane % 2;
    const uint4 w = block(query + lane / 4 + 8 * odd, j + lane % 4 / 2 * 4);
    const std::uint32_t sent0 = odd ? w.x : w.z, sent1 = odd ? w.y : w.w;
    const std::uint32_t got0 = __shfl_xor_sync(0xffffffffu, sent0, 1);
    const std::uint32_t got1 = __shfl_xor_sync(0xffffffffu, sent1, 1);
    words[0] = odd ? got0 : w.x, words[1] = odd ? got1 : w.y;
    words[2] = odd ? w.z : got0, words[3] = odd ? w.w : got1;
  }
  // The same with rows being keys. Four neighbours in g need one word each of the same four blocks:
  // each makes one, and they swap words as a 4 x 4 matrix is transposed.
  __device__ void by_key(int query, int j, std::uint32_t (&words)[4]) const {
    const int lane = threadIdx.x % 32, g = lane / 4, mine = g % 4;
    const uint4 w = block(query + lane % 4 * 2 + mine % 2, j + g / 4 * 4 + mine / 2 * 8);
    words[0] = w.x, words[1] = w.y, words[2] = w.z, words[3] = w.w;
    const bool odd = mine % 2, high = mine / 2;
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
      const std::uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? words[k] : words[k + 1], 4);
      words[k] = odd ? got : words[k], words[k + 1] = odd ? words[k + 1] : got;
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const std::uint32_t got = __shfl_xor_sync(0xffffffffu, high ? words[k] : words[k + 2], 8);
      words[k] = high ? got : words[k], words[k + 2] = high ? words[k + 2] : got;
    }
  }
};

template <class Call>
TileRule tile_rule(const Call& a) {
  return {static_cast<int>(a.q.shape[1]),
          static_cast<int>(a.q.shape[0]),
          static_cast<int>(a.k.shape[0]),
          static_cast<const float*>(a.bias.data),
          a.bias.strides[0],
          a.scale,
          a.causal,
          a.drop,
          a.samples};
}

}  // namespace ballast::ops::cuda
