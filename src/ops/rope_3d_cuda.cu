#include "ops/kernels/row_kernel.cuh"
#include "ops/rope_3d_cuda.h"
#include "ops/rope_kernel.cuh"

namespace ballast::ops::cuda {
namespace {

struct Heads {
  void* data;
  DType dtype;
  std::int64_t token_step, head_step;
};
Heads heads_of(const View& v) { return {v.data, v.dtype, v.strides[0], v.strides[1]}; }

struct Rotation {
  Heads x, y;
  const float* table;
  std::int64_t table_step, tokens;
  int heads, width;
  float sign;  // of the sine
};

// Any dtypes, widths and strides: a thread turns a pair.
__global__ void rotate_any(Rotation a) {
  const std::int64_t pairs = a.width / 2, per_token = a.heads * pairs, all = a.tokens * per_token;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < all; i += step) {
    const std::int64_t l = i / per_token, head = i % per_token / pairs, j = i % pairs;
    const float* cos_sin = a.table + l * a.table_step + 2 * j;
    const float c = cos_sin[0], s = cos_sin[1] * a.sign;
    const Matrix x = {a.x.data, a.x.dtype, a.x.token_step};
    const Matrix y = {a.y.data, a.y.dtype, a.y.token_step};
    const std::int64_t from = head * a.x.head_step + 2 * j, to = head * a.y.head_step + 2 * j;
    float even = read(x, l, from), odd = read(x, l, from + 1);
    rotate_pair(even, odd, c, s);
    write(y, l, to, even);
    write(y, l, to + 1, odd);
  }
}

// bf16 in eights: a block takes token after token. A thread turns the same eight columns of several
// heads, so it reads its four (cos, sin) pairs once per token and has five heads in flight: at D =
// 128 the 128 threads cover eight heads, five times is the 40 heads of the largest model.
constexpr int kThreads = 128, kHeadsAtOnce = 5;

__global__ void __launch_bounds__(kThreads, 8) rotate_eights(Rotation a) {
  const int eights = a.width / 8;  // divides kThreads
  const int c = threadIdx.x % eights * 8, first = threadIdx.x / eights, more = kThreads / eights;
  for (std::int64_t l = blockIdx.x; l < a.tokens; l += gridDim.x) {
    const bf16* x = static_cast<const bf16*>(a.x.data) + l * a.x.token_step + c;
    bf16* y = static_cast<bf16*>(a.y.data) + l * a.y.token_step + c;
    float cos_sin[8];  // cos, sin, cos, ...
    load8(a.table + l * a.table_step + c, cos_sin);
    for (int head = first; head < a.heads; head += kHeadsAtOnce * more) {
      Eight<bf16> e[kHeadsAtOnce];
#pragma unroll
      for (int k = 0; k < kHeadsAtOnce; ++k) {
        if (head + k * more < a.heads) e[k].load(x + (head + k * more) * a.x.head_step);
      }
#pragma unroll
      for (int k = 0; k < kHeadsAtOnce; ++k) {
        if (head + k * more >= a.heads) break;
        float p[8];
        e[k].unpack(p);
        rotate_eight(p, cos_sin, a.sign);
        store_eight(y + (head + k * more) * a.y.head_step, p);
      }
    }
  }
}

bool in_eights_by_head(const View& v) {
  return v.dtype == DType::bf16 && in_eights(v) && v.strides[0] % 8 == 0;
}

struct Table {
  float* out;
  std::int64_t step, tokens, pairs, first_token, rows, columns;  // of the grid
};

// A thread makes one (cos, sin) pair in f64. Once per sample and step: a GPU with a 64th of its
// speed in f64 still needs under a millisecond for 32760 tokens.
__global__ void make_table(Table a) {
  const std::int64_t all = a.tokens * a.pairs, step = std::int64_t{gridDim.x} * blockDim.x;
  const std::int64_t minor = a.pairs / 3, major = a.pairs - 2 * minor;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < all; i += step) {
    const std::int64_t l = i / a.pairs, token = a.first_token + l;
    std::int64_t pair = i % a.pairs, of = minor, position = token / a.columns / a.rows;
    float* out = a.out + l * a.step + 2 * pair;
    if (pair < major) {
      of = major;
    } else if (pair < major + minor) {
      pair -= major;
      position = token / a.columns % a.rows;
    } else {
      pair -= major + minor;
      position = token % a.columns;
    }
    const double exponent = static_cast<double>(pair) / static_cast<double>(of);
    const double angle = static_cast<double>(position) / pow(10000.0, exponent);
    out[0] = static_cast<float>(cos(angle));
    out[1] = static_cast<float>(sin(angle));
  }
}

}  // namespace

void rope_3d(const Rope3d& a, void* stream) {
  if (a.x.elements() == 0) return;
  const Rotation k = {heads_of(a.x),
                      heads_of(a.y),
                      static_cast<const float*>(a.table.data),
                      a.table.strides[0],
                      a.x.shape[0],
                      static_cast<int>(a.x.shape[1]),
                      static_cast<int>(a.x.shape[2]),
                      a.inverse ? -1.0f : 1.0f};
  const bool eights = in_eights_by_head(a.x) && in_eights_by_head(a.y) &&
                      kThreads % (k.width / 8) == 0 && a.table.strides[0] % 4 == 0 &&
                      reinterpret_cast<std::uintptr_t>(a.table.data) % 16 == 0;
  if (eights) {
    rotate_eights<<<row_blocks(k.tokens, 8), kThreads, 0, stream_of(stream)>>>(k);
  } else {
    rotate_any<<<some_blocks(a.x.elements() / 2, 256), 256, 0, stream_of(stream)>>>(k);
  }
  check_launch("rope_3d");
}

void rope_3d_table(const Rope3dTable& a, void* stream) {
  const Table k = {static_cast<float*>(a.table.data),
                   a.table.strides[0],
                   a.table.shape[0],
                   a.table.shape[1],
                   a.first_token,
                   a.grid[1],
                   a.grid[2]};
  if (k.tokens * k.pairs == 0) return;
  make_table<<<some_blocks(k.tokens * k.pairs, 128), 128, 0, stream_of(stream)>>>(k);
  check_launch("rope_3d_table");
}

}  // namespace ballast::ops::cuda
