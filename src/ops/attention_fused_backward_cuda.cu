#include "ops/attention_fused_cuda.h"
#include "ops/attention_tiles.cuh"

namespace ballast::ops::cuda {
namespace {

// As forward's blocks: 64 rows of a head (queries for dq, keys for dk and dv), 16 to a warp, and a
// walk over the tiles of 64 rows of the other side, always from the first. Scores are computed in
// both kernels: that is two products more than the least, and no sum depends on an order of blocks.
// Half a tile of scores at a time keeps both kernels at three blocks to a multiprocessor.
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

// P = 2^(S - lse), 0 where a key takes no part; dS = P (keep dP - delta); p becomes keep P.
struct Slopes {
  float scale;         // of products, in powers of 2
  std::uint32_t drop;  // threshold
  float keep;          // what is left is multiplied by this

  template <bool kDrops>
  __device__ void apply(float bias, float lse, float delta, bool takes_part, std::uint32_t word,
                        float& p, float& dp) const {
    const float weight = takes_part ? power_of_2(fmaf(p, scale, bias) - lse) : 0.0f;
    float kept = 1;
    if constexpr (kDrops) kept = word < drop ? 0.0f : keep;
    p = kDrops ? weight * kept : weight;
    dp = weight * ((kDrops ? dp * kept : dp) - delta);
  }
};

// Sums of a warp's [16, 32] slopes along diagonals. Rows g + 8 are added to rows g, eight columns
// to the left; the 8 rows of 40 columns go through shared memory, and lane n adds up the diagonals
// of column n - 15 and n + 17 of row 0. The second one is continued by the next 32 columns.
constexpr int kDiagonalStride = 40;  // float2s of four rows meet no bank twice
__device__ __forceinline__ void add_diagonals(const float (&ds)[kHalf][4], float* rows, float* to,
                                              float& carried) {
  const int lane = threadIdx.x % 32, g = lane / 4;
#pragma unroll
  for (int m = 0; m <= kHalf; ++m) {
    float2 x = make_float2(0, 0);
    if (m > 0) x = make_float2(ds[m - 1][0], ds[m - 1][1]);
    if (m < kHalf) x.x += ds[m][2], x.y += ds[m][3];
    *reinterpret_cast<float2*>(rows + g * kDiagonalStride + 8 * m + lane % 4 * 2) = x;
  }
  __syncwarp();
  float first = carried, second = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int c = lane + i - 7;  // of 40
    if (c >= 0) first += rows[i * kDiagonalStride + c];
    if (c + 32 < 40) second += rows[i * kDiagonalStride + c + 32];
  }
  __syncwarp();
  to[lane] = first;
  carried = second;
}

template <bool kDrops>
__global__ void __launch_bounds__(kTileThreads, 3) backward_queries(Backward a) {
  __shared__ uint4 k_tile[2][kTileChunks], v_tile[2][kTileChunks];
  __shared__ float bias[2][kTileDistances], diagonals[4][8 * kDiagonalStride];
  __shared__ float deltas[kTileRows];
  const TileRule& rule = a.rule;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, h = blockIdx.y;
  const int tile = gridDim.x - 1 - blockIdx.x;
  const int first = tile * kTileRows, row = warp * 16 + lane / 4;
  const OwnHead head(rule, h);
  const int end = head.keys_seen(rule, first);

  // The places of the second tiles hold o, then q and dout, until these are in registers.
  start_tile(k_tile[1], a.o, h, first, rule.queries);
  start_tile(v_tile[1], a.dout, h, first, rule.queries);
  start_tile(k_tile[0], a.k, h, 0, end);
  start_tile(v_tile[0], a.v, h, 0, end);
  bias[0][threadIdx.x] = fetch_bias(rule, head, first, 0);
  wait_for_copies();
  __syncthreads();
  {
    const int i = threadIdx.x / 2;  // half a row for each of two neighbours
    float sum = 0;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int at = chunk_at(i, threadIdx.x % 2 * 4 + c);
      float x[8], y[8];
      load8(reinterpret_cast<const bf16*>(k_tile[1] + at), x);
      load8(reinterpret_cast<const bf16*>(v_tile[1] + at), y);
#pragma unroll
      for (int e = 0; e < 8; ++e) sum = fmaf(x[e], y[e], sum);
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    deltas[i] = sum;
    if (first + i < rule.queries) a.delta[std::int64_t{h} * rule.queries + first + i] = sum;
  }
  LeftMatrix q[kSteps], dout[kSteps];
  left_rows(dout, v_tile[1], warp * 16);
  __syncthreads();
  start_tile(k_tile[1], a.q, h, first, rule.queries);
  wait_for_copies();
  __syncthreads();
  left_rows(q, k_tile[1], warp * 16);

  float lse[2], delta[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int i = first + row + 8 * r;
    lse[r] = i < rule.queries ? in_powers(a.lse[h * a.lse_head + i]) : kInfinity;
    delta[r] = deltas[row + 8 * r];
  }
  const Slopes slopes = {rule.scale * kLog2e, rule.drop.threshold, rule.drop.scale};
  float* strip = nullptr;
  if (a.strips) {
    strip = a.strips + (std::int64_t{h} * gridDim.x * 4 + tile * 4 + warp) * a.columns;
  }
  float dq[8][4] = {}, carried = 0;
  for (int key = 0, stage = 0; key < end; key += kTileRows, stage ^= 1) {
    wait_for_copies();
    __syncthreads();
    const int next = key + kTileRows;
    float next_bias = 0;
    if (next < end) {
      start_tile(k_tile[stage ^ 1], a.k, h, next, end);
      start_tile(v_tile[stage ^ 1], a.v, h, next, end);
      next_bias = fetch_bias(rule, head, first, next);
    }
    const bool partly = next > end || (rule.causal && next > first);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float s[kHalf][4] = {}, dp[kHalf][4] = {};
      multiply_rows(s, q, k_tile[stage], half * 32);
      multiply_rows(dp, dout, v_tile[stage], half * 32);
      const float* const near = bias[stage] + (kTileRows - 1) + half * 32 + lane % 4 * 2 - row;
#pragma unroll
      for (int n = 0; n < kHalf; ++n) {
        std::uint32_t w[4] = {};
        const int column = key + half * 32 + 8 * n;
        if constexpr (kDrops) ScoreWords(rule, head).by_query(first + warp * 16, column, w);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          bool takes_part = true;
          if (partly) {
            const int j = column + lane % 4 * 2 + k % 2, i = first + row + k / 2 * 8;
            takes_part = j < end && (!rule.causal || j <= i);
          }
          slopes.apply<kDrops>(near[8 * (n - k / 2) + k % 2], lse[k / 2], delta[k / 2], takes_part,
                               w[k], s[n][k], dp[n][k]);
        }
      }
      add_rows(dq, dp, k_tile[stage], half * 32);
      if (strip) add_diagonals(dp, diagonals[warp], strip + key + half * 32, carried);
    }
    bias[stage ^ 1][threadIdx.x] = next_bias;
  }
  if (strip && end > 0 && lane < 16) {
    strip[(end + kTileRows - 1) / kTileRows * kTileRows + lane] = lane < 15 ? carried : 0.0f;
  }
  store_rows(a.dq, h, first + warp * 16, rule.queries, dq, rule.scale, rule.scale);
}

template <bool kDrops>
__global__ void __launch_bounds__(kTileThreads, 3) backward_keys(Backward a) {
  __shared__ uint4 q_tile[2][kTileChunks], dout_tile[2][kTileChunks];
  __shared__ float bias[2][kTileDistances], lses[2][kTileRows], deltas[2][kTileRows];
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

  // The places of the second tiles hold k and v until these are in registers.
  start_tile(q_tile[1], a.k, h, first, head.length);
  start_tile(dout_tile[1], a.v, h, first, head.length);
  start_tile(q_tile[0], a.q, h, begin, rule.queries);
  start_tile(dout_tile[0], a.dout, h, begin, rule.queries);
  bias[0][threadIdx.x] = fetch_bias(rule, head, begin, first);
  place_row(0, fetch_row(begin));
  wait_for_copies();
  __syncthreads();
  LeftMatrix k[kSteps], v[kSteps];
  left_rows(k, q_tile[1], warp * 16);
  left_rows(v, dout_tile[1], warp * 16);

  const Slopes slopes = {rule.scale * kLog2e, rule.drop.threshold, rule.drop.scale};
  float dk[8][4] = {}, dv[8][4] = {};
  for (int query = begin, stage = 0; query < rule.queries; query += kTileRows, stage ^= 1) {
    wait_for_copies();
    __syncthreads();
    const int next = query + kTileRows;
    float next_bias = 0, next_row = 0;
    if (next < rule.queries) {
      start_tile(q_tile[stage ^ 1], a.q, h, next, rule.queries);
      start_tile(dout_tile[stage ^ 1], a.dout, h, next, rule.queries);
      next_bias = fetch_bias(rule, head, next, first);
      next_row = fetch_row(next);
    }
    const bool partly = first + kTileRows > head.length || (rule.causal && query == first);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float s[kHalf][4] = {}, dp[kHalf][4] = {};  // [keys, queries]
      multiply_rows(s, k, q_tile[stage], half * 32);
      multiply_rows(dp, v, dout_tile[stage], half * 32);
      const float* const near = bias[stage] + (kTileRows - 1) - half * 32 - lane % 4 * 2 + row;
#pragma unroll
      for (int n = 0; n < kHalf; ++n) {
        const int within = half * 32 + 8 * n + lane % 4 * 2;
        const float2 lse = *reinterpret_cast<const float2*>(lses[stage] + within);
        const float2 delta = *reinterpret_cast<const float2*>(deltas[stage] + within);
        std::uint32_t w[4] = {};
        if constexpr (kDrops) {
          ScoreWords(rule, head).by_key(query + half * 32 + 8 * n, first + warp * 16, w);
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          bool takes_part = true;
          if (partly) {
            const int j = first + row + e / 2 * 8, i = query + within + e % 2;
            takes_part = j < head.length && (!rule.causal || j <= i);
          }
          slopes.apply<kDrops>(near[8 * (e / 2 - n) - e % 2], e % 2 ? lse.y : lse.x,
                               e % 2 ? delta.y : delta.x, takes_part, w[e], s[n][e], dp[n][e]);
        }
      }
      add_rows(dv, s, dout_tile[stage], half * 32);
      add_rows(dk, dp, q_tile[stage], half * 32);
    }
    bias[stage ^ 1][threadIdx.x] = next_bias;
    place_row(stage ^ 1, next_row);
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
  const int all_rows = (rule.queries + kTileRows - 1) / kTileRows * 4;
  const int heads = static_cast<int>(rule.samples.heads);
  const int skipped = static_cast<int>(rule.samples.first % heads);
  const bool mine = e < rule.queries + rule.keys - 1;
  float total = mine && warp == 0 ? sums[own * sums_head + e] : 0.0f;
  for (int first = (own + heads - skipped) % heads; first < rule.heads; first += kParts * heads) {
    const int h = first + warp * heads;
    if (h < rule.heads) {
      const OwnHead head(rule, h);
      const float* const from = strips + std::int64_t{h} * all_rows * columns;
      float sum = 0;
      for (int s = 0; s < rows; s += 8) {
        float x[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          const int column = distance + (s + k) * 16 + 15;
          const int end = head.keys_seen(rule, (s + k) / 4 * kTileRows);
          const int filled = end == 0 ? 0 : (end + kTileRows - 1) / kTileRows * kTileRows + 15;
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
    const dim3 blocks(tiles_of(b.rule.queries), heads);
    backward_queries<kDrops><<<blocks, kTileThreads, 0, stream_of(stream)>>>(b);
  }
  if (b.rule.keys > 0) {
    const dim3 blocks(tiles_of(b.rule.keys), heads);
    backward_keys<kDrops><<<blocks, kTileThreads, 0, stream_of(stream)>>>(b);
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
