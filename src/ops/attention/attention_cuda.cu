#include "ops/attention/attention_cuda.h"
#include "ops/kernels/cuda_kernel.cuh"

namespace ballast::ops::cuda {
namespace {

// One warp owns one row of the result (a query's o or dq, a key's dk and dv) and walks over all
// rows of the other side in tiles of 32, always from the first: lane t computes the score of row t
// of the tile from the warp's own row, which lies in shared memory; then all lanes add the 32 rows
// up, each lane its own columns. Nothing is shared between warps, so no result depends on how many
// rows there are beside it. Four warps to a block hide each other's waiting and need 8 KiB.
constexpr int kWarps = 4;
constexpr int kTile = 32;
constexpr int kColumns = kPlainWidth / 32;  // of a lane

template <class T>
struct Heads {  // [L, H, D]
  T* data;
  std::int64_t row, head;

  explicit Heads(const View& v)
      : data(static_cast<T*>(v.data)), row(v.strides[0]), head(v.strides[1]) {}
  __device__ T* at(std::int64_t i, std::int64_t h) const { return data + i * row + h * head; }
};

struct Scores {  // [H, Lq, Lk], f32 or bf16, or nothing
  void* data;
  bool is_bf16;
  std::int64_t head, row, column;

  explicit Scores(const View& v)
      : data(v.data),
        is_bf16(v.dtype == DType::bf16),
        head(v.strides[0]),
        row(v.strides[1]),
        column(v.strides[2]) {}
  __device__ float get(std::int64_t h, std::int64_t i, std::int64_t j) const {
    const std::int64_t at = h * head + i * row + j * column;
    return is_bf16 ? to_float(static_cast<const bf16*>(data)[at])
                   : static_cast<const float*>(data)[at];
  }
  __device__ void set(std::int64_t h, std::int64_t i, std::int64_t j, float x) const {
    const std::int64_t at = h * head + i * row + j * column;
    if (is_bf16) {
      static_cast<bf16*>(data)[at] = from_float<bf16>(x);
    } else {
      static_cast<float*>(data)[at] = x;
    }
  }
};

struct Sizes {
  std::int64_t queries, keys, all_keys, heads, width;  // keys: those that take part
  float scale;
  bool causal;
};

template <class T>
struct Forward {
  Heads<T> q, k, v, o;
  float* lse;
  std::int64_t lse_head;
  Scores bias;
  Sizes n;
};

template <class T>
struct Backward {
  Heads<T> q, k, v, o, dout, dq, dk, dv;
  const float* lse;
  std::int64_t lse_head;
  Scores bias, dbias;
  Sizes n;
};

constexpr float kInfinity = __builtin_huge_valf();

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, o));
  return x;
}

// A row as f32, for all lanes of this warp.
template <class T>
__device__ __forceinline__ void share_row(const T* from, std::int64_t width, float* to) {
  for (std::int64_t d = threadIdx.x % 32; d < width; d += 32) to[d] = to_float(from[d]);
}

template <class A, class B>
__device__ __forceinline__ float dot(const A* a, const B* b, std::int64_t width) {
  float sum = 0;
  for (std::int64_t d = 0; d < width; ++d) sum = fmaf(to_float(a[d]), to_float(b[d]), sum);
  return sum;
}

// This lane's columns: sum += weight * row.
template <class T>
__device__ __forceinline__ void add_row(float (&sum)[kColumns], float weight, const T* row,
                                        std::int64_t width) {
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const std::int64_t d = c * 32 + threadIdx.x % 32;
    if (d < width) sum[c] = fmaf(weight, to_float(row[d]), sum[c]);
  }
}
template <class T>
__device__ __forceinline__ void store_row(T* to, const float (&sum)[kColumns], float factor,
                                          std::int64_t width) {
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const std::int64_t d = c * 32 + threadIdx.x % 32;
    if (d < width) to[d] = from_float<T>(sum[c] * factor);
  }
}

__device__ __forceinline__ std::int64_t warp_index() {
  return blockIdx.x * std::int64_t{kWarps} + threadIdx.x / 32;
}

// The keys that query i sees: [0, visible).
__device__ __forceinline__ std::int64_t visible_keys(const Sizes& n, std::int64_t i) {
  return n.causal && i + 1 < n.keys ? i + 1 : n.keys;
}

// e^(s - lse); a query without keys has lse = -inf.
__device__ __forceinline__ float weight_of(float s, float lse) {
  return lse == -kInfinity ? 0 : expf(s - lse);
}

template <class T>
__global__ void __launch_bounds__(kWarps * 32) forward(Forward<T> a) {
  __shared__ float rows[kWarps][kPlainWidth];
  const std::int64_t index = warp_index(), width = a.n.width;
  if (index >= a.n.heads * a.n.queries) return;
  const std::int64_t h = index / a.n.queries, i = index % a.n.queries;
  const int lane = threadIdx.x % 32;
  float* const q = rows[threadIdx.x / 32];
  share_row(a.q.at(i, h), width, q);
  __syncwarp();

  float o[kColumns] = {};
  float most = -kInfinity, sum = 0;  // sum and o are relative to e^most
  const std::int64_t visible = visible_keys(a.n, i);
  for (std::int64_t first = 0; first < visible; first += kTile) {
    const int count = static_cast<int>(visible - first < kTile ? visible - first : kTile);
    float s = -kInfinity;
    if (lane < count) {
      const std::int64_t j = first + lane;
      s = dot(q, a.k.at(j, h), width) * a.n.scale;
      if (a.bias.data) s += a.bias.get(h, i, j);
    }
    const float now = fmaxf(most, warp_max(s));
    if (now == -kInfinity) continue;  // a bias of -inf in the whole tile
    const float shrink = expf(most - now);
    const float p = lane < count ? expf(s - now) : 0;
    sum = fmaf(sum, shrink, warp_sum(p));
    most = now;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) o[c] *= shrink;
    for (int t = 0; t < count; ++t) {
      add_row(o, __shfl_sync(0xffffffffu, p, t), a.v.at(first + t, h), width);
    }
  }
  store_row(a.o.at(i, h), o, sum == 0 ? 0 : 1 / sum, width);
  if (lane == 0) a.lse[h * a.lse_head + i] = sum == 0 ? -kInfinity : most + logf(sum);
}

// dq = scale dS k, and dbias = dS.
template <class T>
__global__ void __launch_bounds__(kWarps * 32) backward_queries(Backward<T> a) {
  __shared__ float rows[kWarps][2][kPlainWidth];
  const std::int64_t index = warp_index(), width = a.n.width;
  if (index >= a.n.heads * a.n.queries) return;
  const std::int64_t h = index / a.n.queries, i = index % a.n.queries;
  const int lane = threadIdx.x % 32;
  float* const q = rows[threadIdx.x / 32][0];
  float* const dout = rows[threadIdx.x / 32][1];
  share_row(a.q.at(i, h), width, q);
  share_row(a.dout.at(i, h), width, dout);
  __syncwarp();
  const float delta = dot(dout, a.o.at(i, h), width);  // the same in every lane
  const float lse = a.lse[h * a.lse_head + i];

  float dq[kColumns] = {};
  const std::int64_t visible = visible_keys(a.n, i);
  for (std::int64_t first = 0; first < visible; first += kTile) {
    const int count = static_cast<int>(visible - first < kTile ? visible - first : kTile);
    float ds = 0;
    if (lane < count) {
      const std::int64_t j = first + lane;
      float s = dot(q, a.k.at(j, h), width) * a.n.scale;
      if (a.bias.data) s += a.bias.get(h, i, j);
      ds = weight_of(s, lse) * (dot(dout, a.v.at(j, h), width) - delta);
      if (a.dbias.data) a.dbias.set(h, i, j, ds);
    }
    for (int t = 0; t < count; ++t) {
      add_row(dq, __shfl_sync(0xffffffffu, ds, t), a.k.at(first + t, h), width);
    }
  }
  store_row(a.dq.at(i, h), dq, a.n.scale, width);
  if (a.dbias.data) {
    for (std::int64_t j = visible + lane; j < a.n.all_keys; j += 32) a.dbias.set(h, i, j, 0);
  }
}

// dk = scale dS^T q, dv = P^T dout. delta is computed again for every key: one more product.
template <class T>
__global__ void __launch_bounds__(kWarps * 32) backward_keys(Backward<T> a) {
  __shared__ float rows[kWarps][2][kPlainWidth];
  const std::int64_t index = warp_index(), width = a.n.width;
  if (index >= a.n.heads * a.n.all_keys) return;
  const std::int64_t h = index / a.n.all_keys, j = index % a.n.all_keys;
  const int lane = threadIdx.x % 32;

  float dk[kColumns] = {}, dv[kColumns] = {};
  if (j < a.n.keys) {
    float* const k = rows[threadIdx.x / 32][0];
    float* const v = rows[threadIdx.x / 32][1];
    share_row(a.k.at(j, h), width, k);
    share_row(a.v.at(j, h), width, v);
    __syncwarp();
    for (std::int64_t first = a.n.causal ? j : 0; first < a.n.queries; first += kTile) {
      const std::int64_t left = a.n.queries - first;
      const int count = static_cast<int>(left < kTile ? left : kTile);
      float p = 0, ds = 0;
      if (lane < count) {
        const std::int64_t i = first + lane;
        const T* const dout = a.dout.at(i, h);
        float s = dot(k, a.q.at(i, h), width) * a.n.scale;
        if (a.bias.data) s += a.bias.get(h, i, j);
        p = weight_of(s, a.lse[h * a.lse_head + i]);
        ds = p * (dot(v, dout, width) - dot(dout, a.o.at(i, h), width));
      }
      for (int t = 0; t < count; ++t) {
        add_row(dk, __shfl_sync(0xffffffffu, ds, t), a.q.at(first + t, h), width);
        add_row(dv, __shfl_sync(0xffffffffu, p, t), a.dout.at(first + t, h), width);
      }
    }
  }
  store_row(a.dk.at(j, h), dk, a.n.scale, width);
  store_row(a.dv.at(j, h), dv, 1, width);
}

// sums[h, j - i + Lq - 1] += dS[i, j]. One warp owns one distance of one head; its lanes take the
// queries in turn, so dS is formed once more: scores of short texts cost little, and nothing of
// their size is kept.
template <class T>
__global__ void __launch_bounds__(kWarps * 32)
    backward_bias(Backward<T> a, float* sums, std::int64_t head_step) {
  const std::int64_t distances = a.n.queries + a.n.all_keys - 1, index = warp_index();
  if (index >= a.n.heads * distances) return;
  const std::int64_t h = index / distances, d = index % distances, width = a.n.width;
  const std::int64_t behind = d - (a.n.queries - 1);  // j - i
  float sum = 0;
  for (std::int64_t i = threadIdx.x % 32; i < a.n.queries; i += 32) {
    const std::int64_t j = i + behind;
    if (j < 0 || j >= visible_keys(a.n, i)) continue;
    const T* const dout = a.dout.at(i, h);
    float s = dot(a.q.at(i, h), a.k.at(j, h), width) * a.n.scale;
    if (a.bias.data) s += a.bias.get(h, i, j);
    sum += weight_of(s, a.lse[h * a.lse_head + i]) *
           (dot(dout, a.v.at(j, h), width) - dot(dout, a.o.at(i, h), width));
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) sums[h * head_step + d] += sum;
}

constexpr int kZeroThreads = 256;  // bound by memory: any size that fills the machine does

template <class T>
__global__ void zero(Heads<T> x, std::int64_t first, std::int64_t rows, std::int64_t heads,
                     std::int64_t width) {
  const std::int64_t all = rows * heads * width;
  for (std::int64_t n = blockIdx.x * std::int64_t{kZeroThreads} + threadIdx.x; n < all;
       n += std::int64_t{gridDim.x} * kZeroThreads) {
    const std::int64_t head = n / width;
    x.at(first + head / heads, head % heads)[n % width] = from_float<T>(0);
  }
}

template <class A>
Sizes sizes_of(const A& a) {
  return {a.q.shape[0], a.kv_length, a.k.shape[0], a.q.shape[1], a.q.shape[2], a.scale, a.causal};
}

}  // namespace

void plain_attention(const Attention& a, void* stream) {
  if (a.q.elements() == 0) return;
  with_activation(a.q.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const Forward<T> f = {Heads<T>(a.q),
                          Heads<T>(a.k),
                          Heads<T>(a.v),
                          Heads<T>(a.o),
                          static_cast<float*>(a.lse.data),
                          a.lse.strides[0],
                          Scores(a.bias),
                          sizes_of(a)};
    forward<T>
        <<<blocks_for(f.n.heads * f.n.queries, kWarps), kWarps * 32, 0, stream_of(stream)>>>(f);
  });
  check_launch("attention");
}

void plain_attention_backward(const AttentionBackward& a, void* stream) {
  with_activation(a.q.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const Backward<T> b = {
        Heads<T>(a.q),    Heads<T>(a.k),    Heads<T>(a.v),
        Heads<T>(a.o),    Heads<T>(a.dout), Heads<T>(a.dq),
        Heads<T>(a.dk),   Heads<T>(a.dv),   static_cast<const float*>(a.lse.data),
        a.lse.strides[0], Scores(a.bias),   Scores(a.dbias),
        sizes_of(a)};
    const std::int64_t queries = b.n.heads * b.n.queries, keys = b.n.heads * b.n.all_keys;
    if (queries > 0) {
      backward_queries<T><<<blocks_for(queries, kWarps), kWarps * 32, 0, stream_of(stream)>>>(b);
    }
    if (keys > 0) {
      backward_keys<T><<<blocks_for(keys, kWarps), kWarps * 32, 0, stream_of(stream)>>>(b);
    }
    if (a.dbias_sums && queries > 0 && keys > 0) {
      const std::int64_t distances = b.n.heads * (b.n.queries + b.n.all_keys - 1);
      backward_bias<T><<<blocks_for(distances, kWarps), kWarps * 32, 0, stream_of(stream)>>>(
          b, static_cast<float*>(a.dbias_sums.data), a.dbias_sums.strides[0]);
    }
  });
  check_launch("attention_backward");
}

void zero_rows(const View& x, std::int64_t first, void* stream) {
  const std::int64_t rows = x.shape[0] - first, heads = x.shape[1], width = x.shape[2];
  const std::int64_t all = rows * heads * width;
  if (all <= 0) return;
  with_activation(x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    zero<T><<<some_blocks(all, kZeroThreads), kZeroThreads, 0, stream_of(stream)>>>(
        Heads<T>(x), first, rows, heads, width);
  });
  check_launch("zero_rows");
}

}  // namespace ballast::ops::cuda
