#include "ops/attention/attention_scores_cuda.h"
#include "ops/kernels/cuda_kernel.cuh"
#include "ops/kernels/random_cuda.cuh"

namespace ballast::ops::cuda {
namespace {

// A warp takes a row of scores, in chunks of 128 keys: lane t has keys 4 t ... 4 t + 3 of each. Up
// to 1024 keys stay in registers between the sum and the weights; longer rows are read again. Sums
// run over a lane's keys in order, then over the lanes, always from key 0 on, so that padding and
// the number of chunks change no bit. Four warps to a block: rows have nothing in common.
constexpr int kWarps = 4;
constexpr int kChunk = 128;
constexpr float kInfinity = __builtin_huge_valf();

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, o));
  return x;
}

__device__ __forceinline__ void load4(const float* p, float (&x)[4]) {
  const float4 v = *reinterpret_cast<const float4*>(p);
  x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}
__device__ __forceinline__ void store4(float* p, const float (&x)[4]) {
  *reinterpret_cast<float4*>(p) = make_float4(x[0], x[1], x[2], x[3]);
}
__device__ __forceinline__ void store4(bf16* p, const float (&x)[4]) {
  uint2 u;
  bf16* e = reinterpret_cast<bf16*>(&u);
#pragma unroll
  for (int k = 0; k < 4; ++k) e[k] = from_float<bf16>(x[k]);
  *reinterpret_cast<uint2*>(p) = u;
}

// One row: query i of the call's h-th head, which is head `own` of a sample.
struct Row {
  std::int64_t h, i, own, visible;
  const float* bias;  // of key 0
  std::uint32_t site;

  __device__ Row(const ScoreRule& r, std::int64_t row) : h(row / r.queries), i(row % r.queries) {
    const std::int64_t all = r.samples.first + h, sample = all / r.samples.heads;
    own = all % r.samples.heads;
    visible = r.samples.lengths[sample];
    if (r.causal && i + 1 < visible) visible = i + 1;
    bias = r.bias ? r.bias + own * r.bias_head - i : nullptr;
    site = r.samples.sites[sample];
  }

  // Four scores from key j on; -infinity where a key takes no part.
  __device__ void scores(const float* from, std::int64_t j, float (&x)[4]) const {
    if (j < visible) load4(from + j, x);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      x[k] = j + k < visible ? (bias ? x[k] + bias[j + k] : x[k]) : -kInfinity;
    }
  }
  // The words of keys j ... j + 3.
  __device__ uint4 words(const AttentionDrop& d, std::int64_t j) const {
    const auto element = static_cast<std::uint64_t>(((d.first_head + own) << 20) + i) << 20;
    RandomKey key = d.source;
    key.site = site;
    return random_block(key, (element + static_cast<std::uint64_t>(j)) / 4);
  }
};

__device__ __forceinline__ bool dropped(const AttentionDrop& d, const uint4& w, int k) {
  return (k == 0 ? w.x : k == 1 ? w.y : k == 2 ? w.z : w.w) < d.threshold;
}

template <class T>
__device__ __forceinline__ void write_weights(const ScoreRule& r, const Row& row, std::int64_t j,
                                              const float (&x)[4], float lse, T* to) {
  float p[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) p[k] = j + k < row.visible ? expf(x[k] - lse) : 0.0f;
  if (r.drop.on) {
    const uint4 w = row.words(r.drop, j);
#pragma unroll
    for (int k = 0; k < 4; ++k) p[k] = dropped(r.drop, w, k) ? 0.0f : p[k] * r.drop.scale;
  }
  store4(to + j, p);
}

template <class T, int kChunks>  // 0: any number
__global__ void soften_rows(const float* s, T* p, float* lse, std::int64_t lse_head, ScoreRule r) {
  const std::int64_t index = blockIdx.x * std::int64_t{kWarps} + threadIdx.x / 32;
  if (index >= r.heads * r.queries) return;
  const Row row(r, index);
  const float* from = s + index * r.stride;
  T* to = p + index * r.stride;
  const std::int64_t mine = threadIdx.x % 32 * 4;
  float held[kChunks > 0 ? kChunks : 1][4];
  float most = -kInfinity, sum = 0;
  if constexpr (kChunks > 0) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      row.scores(from, c * kChunk + mine, held[c]);
#pragma unroll
      for (int k = 0; k < 4; ++k) most = fmaxf(most, held[c][k]);
    }
  } else {
    for (std::int64_t j = mine; j < r.columns; j += kChunk) {
      row.scores(from, j, held[0]);
#pragma unroll
      for (int k = 0; k < 4; ++k) most = fmaxf(most, held[0][k]);
    }
  }
  most = warp_max(most);
  const float base = most == -kInfinity ? 0.0f : most;
  if constexpr (kChunks > 0) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int k = 0; k < 4; ++k) sum += expf(held[c][k] - base);
    }
  } else {
    for (std::int64_t j = mine; j < r.columns; j += kChunk) {
      row.scores(from, j, held[0]);
#pragma unroll
      for (int k = 0; k < 4; ++k) sum += expf(held[0][k] - base);
    }
  }
  sum = warp_sum(sum);
  const float total = base + logf(sum);
  if (mine == 0) lse[row.h * lse_head + row.i] = total;
  if constexpr (kChunks > 0) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const std::int64_t j = c * kChunk + mine;
      if (j < r.stride) write_weights(r, row, j, held[c], total, to);
    }
  } else {
    for (std::int64_t j = mine; j < r.stride; j += kChunk) {
      row.scores(from, j, held[0]);
      write_weights(r, row, j, held[0], total, to);
    }
  }
}

template <class T>
__global__ void soften_rows_backward(const float* s, const float* dp, T* p, T* ds, const T* o,
                                     std::int64_t o_row, std::int64_t o_head, const T* dout,
                                     std::int64_t dout_row, std::int64_t dout_head,
                                     std::int64_t width, const float* lse, std::int64_t lse_head,
                                     ScoreRule r) {
  const std::int64_t index = blockIdx.x * std::int64_t{kWarps} + threadIdx.x / 32;
  if (index >= r.heads * r.queries) return;
  const Row row(r, index);
  const int lane = threadIdx.x % 32;
  const T* of = o + row.i * o_row + row.h * o_head;
  const T* df = dout + row.i * dout_row + row.h * dout_head;
  float sum = 0;
  for (std::int64_t d = lane; d < width; d += 32) sum += to_float(of[d]) * to_float(df[d]);
  const float delta = warp_sum(sum), total = lse[row.h * lse_head + row.i];
  const std::int64_t at = index * r.stride;
  for (std::int64_t j = lane * 4; j < r.stride; j += kChunk) {
    float x[4], dx[4] = {}, weights[4], slopes[4];
    row.scores(s + at, j, x);
    if (j < row.visible) load4(dp + at + j, dx);
    uint4 w = make_uint4(0, 0, 0, 0);
    if (r.drop.on) w = row.words(r.drop, j);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const bool visible = j + k < row.visible, gone = r.drop.on && dropped(r.drop, w, k);
      const float weight = visible ? expf(x[k] - total) : 0.0f;
      weights[k] = gone ? 0.0f : weight * r.drop.scale;
      slopes[k] = visible ? weight * ((gone ? 0.0f : dx[k] * r.drop.scale) - delta) : 0.0f;
    }
    store4(p + at + j, weights);
    store4(ds + at + j, slopes);
  }
}

// A block takes 32 neighbouring diagonals of a head, a warp a sixteenth of the queries: neighbours
// in a row of scores are neighbours among the diagonals, so loads are whole. The sixteen sums of a
// sample are added in order, then those of the next one.
constexpr int kDiagonals = 32, kParts = 16;

template <class T>
__global__ void sum_diagonals(const T* ds, float* sums, std::int64_t sums_head, std::int64_t heads,
                              std::int64_t first_head, std::int64_t queries, std::int64_t columns,
                              std::int64_t stride) {
  __shared__ float part[kParts][kDiagonals];
  const int lane = threadIdx.x % kDiagonals, warp = threadIdx.x / kDiagonals;
  const std::int64_t h = blockIdx.y, e = blockIdx.x * std::int64_t{kDiagonals} + lane;
  const std::int64_t step = (queries + kParts - 1) / kParts;
  const std::int64_t first = warp * step, end = first + step < queries ? first + step : queries;
  const std::int64_t sample_heads = gridDim.y;
  const bool mine = e < queries + columns - 1;
  float total = mine && warp == 0 ? sums[h * sums_head + e] : 0.0f;
  for (std::int64_t g = (h + sample_heads - first_head % sample_heads) % sample_heads; g < heads;
       g += sample_heads) {
    const T* from = ds + g * queries * stride;
    float sum = 0;
    for (std::int64_t i = first; i < end; ++i) {
      const std::int64_t j = e + i - (queries - 1);
      if (j >= 0 && j < columns) sum += to_float(from[i * stride + j]);
    }
    part[warp][lane] = sum;
    __syncthreads();
    if (warp == 0) {
      float all = 0;
      for (int k = 0; k < kParts; ++k) all += part[k][lane];
      total += all;
    }
    __syncthreads();
  }
  if (mine && warp == 0) sums[h * sums_head + e] = total;
}

template <class T>
void soften(const SoftenScores& a, void* stream) {
  const std::int64_t rows = a.rule.heads * a.rule.queries;
  const unsigned blocks = blocks_for(rows, kWarps);
  const auto launch = [&](auto kernel) {
    kernel<<<blocks, kWarps * 32, 0, stream_of(stream)>>>(a.s, static_cast<T*>(a.p), a.lse,
                                                          a.lse_head, a.rule);
  };
  if (a.rule.stride <= 2 * kChunk) return launch(soften_rows<T, 2>);
  if (a.rule.stride <= 4 * kChunk) return launch(soften_rows<T, 4>);
  if (a.rule.stride <= 8 * kChunk) return launch(soften_rows<T, 8>);
  launch(soften_rows<T, 0>);
}

}  // namespace

void soften_scores(const SoftenScores& a, void* stream) {
  if (a.rule.heads * a.rule.queries == 0) return;
  with_activation(a.dtype, [&](auto t) { soften<typename decltype(t)::type>(a, stream); });
  check_launch("attention");
}

void soften_backward(const SoftenBackward& a, void* stream) {
  const std::int64_t rows = a.rule.heads * a.rule.queries;
  if (rows == 0) return;
  with_activation(a.o.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    soften_rows_backward<T><<<blocks_for(rows, kWarps), kWarps * 32, 0, stream_of(stream)>>>(
        a.s, a.dp, static_cast<T*>(a.p), static_cast<T*>(a.ds), static_cast<const T*>(a.o.data),
        a.o.strides[0], a.o.strides[1], static_cast<const T*>(a.dout.data), a.dout.strides[0],
        a.dout.strides[1], a.o.shape[2], a.lse, a.lse_head, a.rule);
  });
  check_launch("attention_backward");
}

void add_diagonals(const AddDiagonals& a, void* stream) {
  if (a.heads * a.queries * a.columns == 0) return;
  const dim3 blocks(blocks_for(a.queries + a.columns - 1, kDiagonals),
                    static_cast<unsigned>(a.sample_heads));
  with_activation(a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    sum_diagonals<T><<<blocks, kDiagonals * kParts, 0, stream_of(stream)>>>(
        static_cast<const T*>(a.ds), a.sums, a.sums_head, a.heads, a.first, a.queries, a.columns,
        a.stride);
  });
  check_launch("attention_backward");
}

}  // namespace ballast::ops::cuda
