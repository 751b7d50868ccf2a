#include "ops/attention/attention_fused_cuda.h"
#include "ops/attention/attention_tiles.cuh"

namespace ballast::ops::cuda {
namespace {

// A block has 128 queries of a head, a warp 16 of them, and walks over the keys in tiles of 64 from
// key 0 on, while the next tile's keys and values are copied: a row's sums depend on nothing but
// its own keys. With 64 queries the copies would take the cache as long as the products take; 128
// registers let two blocks share a multiprocessor.
constexpr int kWarps = 8, kThreads = 32 * kWarps, kQueries = 16 * kWarps;

struct Forward {
  HeadRows q, k, v, o;
  float* lse;
  std::int64_t lse_head;
  TileRule rule;
};

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

template <bool kDrops>
__global__ void __launch_bounds__(kThreads, 2) forward(Forward a) {
  __shared__ uint4 k_tile[2][kTileChunks], v_tile[2][kTileChunks];
  __shared__ float bias[2][kThreads];  // kQueries + 63 of them
  const TileRule& rule = a.rule;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, h = blockIdx.y;
  const int tile = gridDim.x - 1 - blockIdx.x;  // with a mask the last ones have most to do
  const int first = tile * kQueries, row = warp * 16 + lane / 4;  // and row + 8
  const OwnHead head(rule, h);
  const int end = head.keys_seen(rule, first, kQueries);

  start_tile<kThreads>(k_tile[0], a.k, h, 0, end);
  start_tile<kThreads>(v_tile[0], a.v, h, 0, end);
  float next_bias = fetch_bias<kQueries>(rule, head, first, 0);
  LeftMatrix q[kSteps];
  fetch_rows(q, a.q, h, first + warp * 16, rule.queries);

  const float scale = rule.scale * kLog2e;
  float o[8][4] = {}, most[2] = {-kInfinity, -kInfinity}, sum[2] = {};
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
    float s[8][4] = {};
    multiply_rows(s, q, k_tile[stage], 0);
    const float* const near = bias[stage] + (kQueries - 1) + lane % 4 * 2 - row;
    add_bias(s, scale, [&](int n, int k) { return near[8 * (n - k / 2) + k % 2]; });
    if (next > end || (rule.causal && next > first)) {
      hide(s, [&](int n, int k) {
        const int j = key + 8 * n + lane % 4 * 2 + k % 2;
        return j >= end || (rule.causal && j > first + row + k / 2 * 8);
      });
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float now = most[r];
#pragma unroll
      for (int n = 0; n < 8; ++n) now = fmaxf(now, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
      now = quad_max(now);
      const float base = now == -kInfinity ? 0.0f : now, shrink = power_of_2(most[r] - base);
      most[r] = now;
      sum[r] *= shrink;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        o[n][2 * r] *= shrink, o[n][2 * r + 1] *= shrink;
        s[n][2 * r] = power_of_2(s[n][2 * r] - base);
        s[n][2 * r + 1] = power_of_2(s[n][2 * r + 1] - base);
        sum[r] += s[n][2 * r] + s[n][2 * r + 1];
      }
    }
    if constexpr (kDrops) {
      const ScoreWords words(rule, head);
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        std::uint32_t w[4];
        words.by_query(first + warp * 16, key + 8 * n, w);
#pragma unroll
        for (int k = 0; k < 4; ++k) s[n][k] = w[k] < rule.drop.threshold ? 0.0f : s[n][k];
      }
    }
    add_rows(o, s, v_tile[stage], 0);
  }

  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float all = quad_sum(sum[r]);
    factor[r] = all == 0 ? 0.0f : rule.drop.scale / all;
    const int i = first + row + 8 * r;
    if (lane % 4 == 0 && i < rule.queries) {
      a.lse[h * a.lse_head + i] = all == 0 ? -kInfinity : (most[r] + log2f(all)) / kLog2e;
    }
  }
  store_rows(a.o, h, first + warp * 16, rule.queries, o, factor[0], factor[1]);
}

}  // namespace

// S = scale q k^T + bias, lse = log(sum(e^S)), o = e^(S - lse) v.
void fused_attention(const Attention& a, void* stream) {
  if (a.q.elements() == 0) return;
  const Forward f = {HeadRows(a.q),
                     HeadRows(a.k),
                     HeadRows(a.v),
                     HeadRows(a.o),
                     static_cast<float*>(a.lse.data),
                     a.lse.strides[0],
                     tile_rule(a)};
  const dim3 blocks(blocks_for(f.rule.queries, kQueries), static_cast<unsigned>(f.rule.heads));
  if (a.drop.on) {
    forward<true><<<blocks, kThreads, 0, stream_of(stream)>>>(f);
  } else {
    forward<false><<<blocks, kThreads, 0, stream_of(stream)>>>(f);
  }
  check_launch("attention");
}

}  // namespace ballast::ops::cuda
