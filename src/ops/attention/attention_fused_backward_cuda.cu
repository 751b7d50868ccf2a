#include "ops/attention/attention_fused_cuda.h"
#include "ops/attention/attention_tiles.cuh"

namespace ballast::ops::cuda {
namespace {

// As forward's blocks: rows of a head (queries for dq, keys for dk and dv), 16 to a warp, and a
// walk over the tiles of 64 rows of the other side, always from the first. Scores are computed in
// both kernels: that is two products more than the least, and no sum depends on an order of blocks.
// Half a tile of scores at a time leaves registers for as many warps as here.
template <int kWarpsOfBlock, int kBlocksAtOnce>
struct Block {
  static constexpr int kWarps = kWarpsOfBlock, kThreads = 32 * kWarps, kRows = 16 * kWarps;
  static constexpr int kBlocks = kBlocksAtOnce;
};
using QueryBlock = Block<4, 3>;
using KeyBlock = Block<4, 3>;

struct Backward {
  HeadRows q, k, v, o, dout, dq, dk, dv;
  const float* lse;
  std::int64_t lse_head;
  float* delta;   // [H, Lq], written with dq
  float* strips;  // see FusedParts; null where the bias's gradient is not wanted
  std::int64_t columns;
  TileRule rule;
};

constexpr int kHalf = 4;  // eights of columns in half a tile

// log2(sum(2^S)) of a query; +infinity, which gives weights of 0, where no key takes part.
__device__ __forceinline__ float in_powers(float lse) {
  return lse == -kInfinity ? kInfinity : lse * kLog2e;
}

__device__ __forceinline__ int whole_tiles(int rows) {
  return (rows + kTileRows - 1) / kTileRows * kTileRows;
}

// P = 2^(S - lse) in powers of 2, dS = P (keep dP - delta); s becomes keep P, dp dS. A score of
// -infinity gives 0 for both.
template <bool kDrops>
__device__ __forceinline__ void to_slopes(const AttentionDrop& drop, float lse, float delta,
                                          std::uint32_t word, float& s, float& dp) {
  const float weight = power_of_2(s - lse);
  if constexpr (kDrops) {
    const float kept = word < drop.threshold ? 0.0f : drop.scale;
    s = weight * kept;
    dp = weight * fmaf(dp, kept, -delta);
  } else {
    s = weight;
    dp = weight * (dp - delta);
  }
}

// Sums of a warp's [16, 32] slopes along diagonals. Rows g + 8 are added to rows g, eight columns
// to the left; the 8 rows of 40 columns go through shared memory, zeros around them, and lane n
// adds up the diagonals of column n - 15 and n + 17 of row 0. The second one is continued by the
// next 32 columns.
constexpr int kDiagonalStride = 72;  // float2s of four rows meet no bank twice
constexpr int kDiagonalRows = 8 * kDiagonalStride;
__device__ __forceinline__ void add_diagonals(const float (&ds)[kHalf][4], float* rows, float* to,
                                              float& carried) {
  const int lane = threadIdx.x % 32, g = lane / 4;
#pragma unroll
  for (int m = 0; m <= kHalf; ++m) {
    float2 x = make_float2(0, 0);
    if (m > 0) x = make_float2(ds[m - 1][0], ds[m - 1][1]);
    if (m < kHalf) x.x += ds[m][2], x.y += ds[m][3];
    *reinterpret_cast<float2*>(rows + g * kDiagonalStride + 8 * (m + 1) + lane % 4 * 2) = x;
  }
  __syncwarp();
  float first = carried, second = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float* const from = rows + i * kDiagonalStride + lane + i + 1;
    first += from[0];
    second += from[32];
  }
  __syncwarp();
  to[lane] = first;
  carried = second;
}

// dq = scale dS k.
template <bool kDrops>
__global__ void __launch_bounds__(QueryBlock::kThreads, QueryBlock::kBlocks)
    backward_queries(Backward a) {
  constexpr int kThreads = QueryBlock::kThreads, kQueries = QueryBlock::kRows;
  __shared__ uint4 k_tile[2][kTileChunks], v_tile[2][kTileChunks];
  __shared__ float bias[2][kThreads], diagonals[QueryBlock::kWarps][kDiagonalRows];
  const TileRule& rule = a.rule;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, h = blockIdx.y;
  const int tile = gridDim.x - 1 - blockIdx.x;  // with a mask the last ones have most to do
  const int first = tile * kQueries, row = warp * 16 + lane / 4;  // and row + 8
  const OwnHead head(rule, h);
  const int end = head.keys_seen(rule, first, kQueries);

  start_tile<kThreads>(k_tile[0], a.k, h, 0, end);
  start_tile<kThreads>(v_tile[0], a.v, h, 0, end);
  float next_bias = fetch_bias<kQueries>(rule, head, first, 0);
  LeftMatrix q[kSteps], dout[kSteps];
  fetch_rows(dout, a.dout, h, first + warp * 16, rule.queries);
  fetch_rows(q, a.o, h, first + warp * 16, rule.queries);
  float lse[2], delta[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < 2 * kSteps; ++k) {
      const float2 x = unpack_bf16(q[k / 2].x[k % 2 * 2 + r]);
      const float2 y = unpack_bf16(dout[k / 2].x[k % 2 * 2 + r]);
      sum = fmaf(x.x, y.x, fmaf(x.y, y.y, sum));
    }
    delta[r] = quad_sum(sum);
    const int i = first + row + 8 * r;
    const bool real = i < rule.queries;
    if (real && lane % 4 == 0) a.delta[std::int64_t{h} * rule.queries + i] = delta[r];
    lse[r] = real ? in_powers(a.lse[h * a.lse_head + i]) : kInfinity;
  }
  fetch_rows(q, a.q, h, first + warp * 16, rule.queries);

  const float scale = rule.scale * kLog2e;
  const ScoreWords words(rule, head);
  const int strips = (rule.queries + 15) / 16, own_strip = first / 16 + warp;
  float* const strip = a.strips && own_strip < strips
                           ? a.strips + (std::int64_t{h} * strips + own_strip) * a.columns
                           : nullptr;
  for (int i = lane; i < kDiagonalRows; i += 32) diagonals[warp][i] = 0;
  float dq[8][4] = {}, carried = 0;
  for (int key = 0, stage = 0; key < end; key += kTileRows, stage ^= 1) {
    bias[stage][threadIdx.x] = next_bias;
    wait_for_copies();
    __syncthreads();
    const int next = key + kTileRows;
    if (next < end) {
      start_tile<kThreads>(k_tile[stage ^ 1], a.k, h, next, end);
      start_tile<kThreads>(v_tile[stage ^ 1], a.v, h, next, end);
      next_bias = fetch_bias<kQueries>(rule, head, first, next);
    }
    if (rule.causal && key > first + warp * 16 + 15) continue;  // nothing for this warp
    const bool partly = next > end || (rule.causal && next > first);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float s[kHalf][4] = {}, dp[kHalf][4] = {};
      multiply_rows(s, q, k_tile[stage], half * 32);
      multiply_rows(dp, dout, v_tile[stage], half * 32);
      const float* const near = bias[stage] + (kQueries - 1) + half * 32 + lane % 4 * 2 - row;
      add_bias(s, scale, [&](int n, int k) { return near[8 * (n - k / 2) + k % 2]; });
      if (partly) {
        hide(s, [&](int n, int k) {
          const int j = key + half * 32 + 8 * n + lane % 4 * 2 + k % 2;
          return j >= end || (rule.causal && j > first + row + k / 2 * 8);
        });
      }
#pragma unroll
      for (int n = 0; n < kHalf; ++n) {
        std::uint32_t w[4] = {};
        if constexpr (kDrops) words.by_query(first + warp * 16, key + half * 32 + 8 * n, w);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          to_slopes<kDrops>(rule.drop, lse[k / 2], delta[k / 2], w[k], s[n][k], dp[n][k]);
        }
      }
      add_rows(dq, dp, k_tile[stage], half * 32);
      if (strip) add_diagonals(dp, diagonals[warp], strip + key + half * 32, carried);
    }
  }
  if (strip && lane < 15) {
    strip[whole_tiles(head.keys_seen(rule, first + warp * 16, 16)) + lane] = carried;
  }
  store_rows(a.dq, h, first + warp * 16, rule.queries, dq, rule.scale, rule.scale);
}

// dk = scale dS^T q, dv = P^T dout.
template <bool kDrops>
__global__ void __launch_bounds__(KeyBlock::kThreads, KeyBlock::kBlocks) backward_keys(Backward a) {
  constexpr int kThreads = KeyBlock::kThreads;
  static_assert(KeyBlock::kRows == kTileRows, "the mask is that of square tiles");
  __shared__ uint4 q_tile[2][kTileChunks], dout_tile[2][kTileChunks];
  __shared__ float bias[2][kThreads], lses[2][kTileRows], deltas[2][kTileRows];
  const TileRule& rule = a.rule;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, h = blockIdx.y;
  const int first = blockIdx.x * kTileRows, row = warp * 16 + lane / 4;
  const OwnHead head(rule, h);
  const int begin = first >= head.length ? rule.queries : rule.causal ? first : 0;

  // A tile's queries: half of the threads fetch lse, half delta.
  const bool fetches_lse = threadIdx.x < kTileRows;
  const auto fetch_row = [&](int query) {
    const int i = query + static_cast<int>(threadIdx.x) % kTileRows;
    if (i >= rule.queries) return fetches_lse ? kInfinity : 0.0f;
    return fetches_lse ? in_powers(a.lse[h * a.lse_head + i])
                       : a.delta[std::int64_t{h} * rule.queries + i];
  };
  const auto place_row = [&](int stage, float x) {
    (fetches_lse ? lses : deltas)[stage][threadIdx.x % kTileRows] = x;
  };

  start_tile<kThreads>(q_tile[0], a.q, h, begin, rule.queries);
  start_tile<kThreads>(dout_tile[0], a.dout, h, begin, rule.queries);
  float next_bias = fetch_bias<kTileRows>(rule, head, begin, first), next_row = fetch_row(begin);
  LeftMatrix k[kSteps], v[kSteps];
  fetch_rows(k, a.k, h, first + warp * 16, head.length);
  fetch_rows(v, a.v, h, first + warp * 16, head.length);

  const float scale = rule.scale * kLog2e;
  const ScoreWords words(rule, head);
  float dk[8][4] = {}, dv[8][4] = {};
  for (int query = begin, stage = 0; query < rule.queries; query += kTileRows, stage ^= 1) {
    bias[stage][threadIdx.x] = next_bias;
    place_row(stage, next_row);
    wait_for_copies();
    __syncthreads();
    const int next = query + kTileRows;
    if (next < rule.queries) {
      start_tile<kThreads>(q_tile[stage ^ 1], a.q, h, next, rule.queries);
      start_tile<kThreads>(dout_tile[stage ^ 1], a.dout, h, next, rule.queries);
      next_bias = fetch_bias<kTileRows>(rule, head, next, first);
      next_row = fetch_row(next);
    }
    const bool partly = first + kTileRows > head.length || (rule.causal && query == first);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float s[kHalf][4] = {}, dp[kHalf][4] = {};  // [keys, queries]
      multiply_rows(s, k, q_tile[stage], half * 32);
      multiply_rows(dp, v, dout_tile[stage], half * 32);
      const float* const near = bias[stage] + (kTileRows - 1) - half * 32 - lane % 4 * 2 + row;
      add_bias(s, scale, [&](int n, int e) { return near[8 * (e / 2 - n) - e % 2]; });
      if (partly) {
        hide(s, [&](int n, int e) {
          const int j = first + row + e / 2 * 8;
          return j >= head.length ||
                 (rule.causal && j > query + half * 32 + 8 * n + lane % 4 * 2 + e % 2);
        });
      }
#pragma unroll
      for (int n = 0; n < kHalf; ++n) {
        const int within = half * 32 + 8 * n + lane % 4 * 2;
        const float2 lse = *reinterpret_cast<const float2*>(lses[stage] + within);
        const float2 delta = *reinterpret_cast<const float2*>(deltas[stage] + within);
        std::uint32_t w[4] = {};
        if constexpr (kDrops) words.by_key(query + half * 32 + 8 * n, first + warp * 16, w);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          to_slopes<kDrops>(rule.drop, e % 2 ? lse.y : lse.x, e % 2 ? delta.y : delta.x, w[e],
                            s[n][e], dp[n][e]);
        }
      }
      add_rows(dv, s, dout_tile[stage], half * 32);
      add_rows(dk, dp, q_tile[stage], half * 32);
    }
  }
  store_rows(a.dk, h, first + warp * 16, rule.keys, dk, rule.scale, rule.scale);
  store_rows(a.dv, h, first + warp * 16, rule.keys, dv, 1, 1);
}

// A block takes 32 neighbouring distances of a head of the samples, a warp one sample of eight at a
// time. It adds that sample's strips in order, eight loads in flight; the samples' sums are added
// in order: the gradient does not depend on how many of them are in a call.
constexpr int kDistances = 32, kParts = 8;

__global__ void sum_strips(const float* strips, std::int64_t columns, float* sums,
                           std::int64_t sums_head, TileRule rule) {
  __shared__ float part[kParts][kDistances];
  const int lane = threadIdx.x % kDistances, warp = threadIdx.x / kDistances;
  const int own = blockIdx.y, e = blockIdx.x * kDistances + lane;
  const int distance = e - (rule.queries - 1), rows = (rule.queries + 15) / 16;
  const int heads = static_cast<int>(rule.samples.heads);
  const int skipped = static_cast<int>(rule.samples.first % heads);
  const bool mine = e < rule.queries + rule.keys - 1;
  float total = mine && warp == 0 ? sums[own * sums_head + e] : 0.0f;
  for (int first = (own + heads - skipped) % heads; first < rule.heads; first += kParts * heads) {
    const int h = first + warp * heads;
    if (h < rule.heads) {
      const OwnHead head(rule, h);
      const float* const from = strips + std::int64_t{h} * rows * columns;
      float sum = 0;
      for (int s = 0; s < rows; s += 8) {
        float x[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          const int column = distance + (s + k) * 16 + 15;
          const int end = head.keys_seen(rule, (s + k) * 16, 16);
          const int filled = end == 0 ? 0 : whole_tiles(end) + 15;
          const bool real = s + k < rows && column >= 0 && column < filled;
          x[k] = real ? from[(s + k) * columns + column] : 0.0f;
        }
#pragma unroll
        for (int k = 0; k < 8; ++k) sum += x[k];
      }
      part[warp][lane] = sum;
    }
    __syncthreads();
    if (warp == 0) {
      for (int k = 0; k < kParts && first + k * heads < rule.heads; ++k) total += part[k][lane];
    }
    __syncthreads();
  }
  if (mine && warp == 0) sums[own * sums_head + e] = total;
}

template <bool kDrops>
void launch(const Backward& b, void* stream) {
  const auto heads = static_cast<unsigned>(b.rule.heads);
  if (b.rule.queries > 0) {
    const dim3 blocks(blocks_for(b.rule.queries, QueryBlock::kRows), heads);
    backward_queries<kDrops><<<blocks, QueryBlock::kThreads, 0, stream_of(stream)>>>(b);
  }
  if (b.rule.keys > 0) {
    const dim3 blocks(blocks_for(b.rule.keys, KeyBlock::kRows), heads);
    backward_keys<kDrops><<<blocks, KeyBlock::kThreads, 0, stream_of(stream)>>>(b);
  }
}

}  // namespace

void fused_attention_backward(const AttentionBackward& a, const FusedParts& parts, void* stream) {
  if (a.q.shape[1] == 0) return;
  auto* const ws = static_cast<unsigned char*>(a.workspace.data);
  const Backward b = {HeadRows(a.q),
                      HeadRows(a.k),
                      HeadRows(a.v),
                      HeadRows(a.o),
                      HeadRows(a.dout),
                      HeadRows(a.dq),
                      HeadRows(a.dk),
                      HeadRows(a.dv),
                      static_cast<const float*>(a.lse.data),
                      a.lse.strides[0],
                      reinterpret_cast<float*>(ws + parts.delta),
                      a.dbias_sums ? reinterpret_cast<float*>(ws + parts.strips) : nullptr,
                      parts.columns,
                      tile_rule(a)};
  a.drop.on ? launch<true>(b, stream) : launch<false>(b, stream);
  if (b.strips && b.rule.queries > 0 && b.rule.keys > 0) {
    const dim3 blocks(blocks_for(b.rule.queries + b.rule.keys - 1, kDistances),
                      static_cast<unsigned>(b.rule.samples.heads));
    sum_strips<<<blocks, kDistances * kParts, 0, stream_of(stream)>>>(
        b.strips, b.columns, static_cast<float*>(a.dbias_sums.data), a.dbias_sums.strides[0],
        b.rule);
  }
  check_launch("attention_backward");
}

}  // namespace ballast::ops::cuda
