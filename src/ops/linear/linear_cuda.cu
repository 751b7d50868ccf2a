#include <type_traits>

#include "ops/gelu_cuda.cuh"
#include "ops/kernels/cuda_kernel.cuh"
#include "ops/linear/linear_cuda.h"

namespace ballast::ops::cuda {
namespace {

constexpr int kThreads = 128;

// A block of 128 threads covers up to 128 neighbouring pieces of a row, and as many rows as are
// left threads for; a thread takes its piece of two rows, both loads in flight. The widths of real
// layers are multiples of 128 pieces of eight, or nearly.
struct Grid {
  dim3 blocks, threads;
};
Grid grid_for(std::int64_t rows, std::int64_t pieces) {
  unsigned across = 1;
  while (across < kThreads && across < pieces) across *= 2;
  const unsigned down = kThreads / across;
  const unsigned most = 65535;
  const std::int64_t high = (rows + 2 * down - 1) / (2 * down);
  Grid g;
  g.threads = dim3(across, down);
  g.blocks = dim3(blocks_for(pieces, across), high < most ? static_cast<unsigned>(high) : most);
  return g;
}

// One element at any address.
template <class T>
__device__ __forceinline__ T load_anywhere(const unsigned char* p, bool aligned) {
  if (sizeof(T) == 1 || aligned) return *reinterpret_cast<const T*>(p);
  T x;
  unsigned char* to = reinterpret_cast<unsigned char*>(&x);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T)); ++i) to[i] = p[i];
  return x;
}

struct Factor {
  const unsigned char* data;
  std::int64_t row_stride, group_stride, group;
  bool aligned;

  __device__ __forceinline__ float at(std::int64_t row, std::int64_t column) const {
    if (data == nullptr) return 1;
    // Group numbers fit 32 bits, whose division is cheap.
    const std::int64_t g = static_cast<unsigned>(column) / static_cast<unsigned>(group);
    return load_anywhere<float>(data + 4 * (row * row_stride + g * group_stride), aligned);
  }
};

template <class S, class D>
__global__ void expand_any(const unsigned char* from, std::int64_t from_step, bool aligned, D* to,
                           std::int64_t to_step, std::int64_t rows, std::int64_t columns,
                           Factor factor) {
  const std::int64_t c = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
  if (c >= columns) return;
  for (std::int64_t r = blockIdx.y * std::int64_t{blockDim.y} + threadIdx.y; r < rows;
       r += std::int64_t{gridDim.y} * blockDim.y) {
    const S x = load_anywhere<S>(from + (r * from_step + c) * std::int64_t{sizeof(S)}, aligned);
    to[r * to_step + c] = from_float<D>(to_float(x) * factor.at(r, c));
  }
}

// Eight neighbouring elements in one or two loads.
template <class S>
struct Eight {
  static_assert(sizeof(S) == 1 || sizeof(S) == 2, "one or two bytes");
  using Word = typename std::conditional<sizeof(S) == 1, uint2, uint4>::type;
  Word word;
  __device__ __forceinline__ void load(const S* p) { word = *reinterpret_cast<const Word*>(p); }
  __device__ __forceinline__ void get(float (&x)[8]) const {
    const S* e = reinterpret_cast<const S*>(&word);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = to_float(e[i]);
  }
};
template <>
struct Eight<float> {
  float x[8];
  __device__ __forceinline__ void load(const float* p) { load8(p, x); }
  __device__ __forceinline__ void get(float (&to)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i] = x[i];
  }
};

template <class S, class D>
__global__ void expand_eights(const S* __restrict__ from, std::int64_t from_step,
                              D* __restrict__ to, std::int64_t to_step, std::int64_t rows,
                              std::int64_t pieces, Factor factor) {
  const std::int64_t piece = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
  if (piece >= pieces) return;
  const std::int64_t c = piece * 8, step = std::int64_t{gridDim.y} * blockDim.y;
  for (std::int64_t r = blockIdx.y * std::int64_t{blockDim.y} + threadIdx.y; r < rows;
       r += 2 * step) {
    const bool two = r + step < rows;
    Eight<S> a, b;
    a.load(from + r * from_step + c);
    if (two) b.load(from + (r + step) * from_step + c);
    const auto put = [&](const Eight<S>& eight, std::int64_t row) {
      float x[8];
      eight.get(x);
      const float f = factor.at(row, c);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] *= f;
      store8(to + row * to_step + c, x);
    };
    put(a, r);
    if (two) put(b, r + step);
  }
}

template <class F>
void with_weight(DType t, F&& f) {
  switch (t) {
    case DType::f8_e4m3:
      return f(Type<f8_e4m3>());
    case DType::f8_e5m2:
      return f(Type<f8_e5m2>());
    case DType::i8:
      return f(Type<std::int8_t>());
    default:
      return with_parameter(t, static_cast<F&&>(f));
  }
}

bool multiple(const void* p, std::int64_t of) {
  return reinterpret_cast<std::uintptr_t>(p) % static_cast<std::uintptr_t>(of) == 0;
}

// A block makes a tile of 16 x 16 results, a thread each; operands pass through shared memory in
// tiles of the same size, read along whichever dimension lies next to each other. Plain: it serves
// sizes that are too odd for the library, which are small.
constexpr int kTile = 16;

template <class F>
void with_factor(DType t, F&& f) {
  if (t == DType::f8_e4m3) return f(Type<f8_e4m3>());
  return with_activation(t, static_cast<F&&>(f));
}

template <class T>
__device__ __forceinline__ float element(const PlainProduct::Matrix& m, std::int64_t batch,
                                         std::int64_t row, std::int64_t rows, std::int64_t column,
                                         std::int64_t columns) {
  if (row >= rows || column >= columns) return 0;
  return to_float(static_cast<const T*>(m.data)[batch * m.batch + row * m.row + column * m.column]);
}

template <class T, class Out>
__global__ void plain_product_kernel(PlainProduct a) {
  __shared__ float left[kTile][kTile + 1], right[kTile][kTile + 1];
  const int tx = threadIdx.x, ty = threadIdx.y;
  const std::int64_t row0 = blockIdx.x * std::int64_t{kTile};
  const std::int64_t column0 = blockIdx.y * std::int64_t{kTile}, batch = blockIdx.z;
  const bool left_along = a.left.column == 1, right_along = a.right.column == 1;
  float sum = 0;
  for (std::int64_t d0 = 0; d0 < a.depth; d0 += kTile) {
    const int lr = left_along ? ty : tx, ld = left_along ? tx : ty;
    left[lr][ld] = element<T>(a.left, batch, row0 + lr, a.rows, d0 + ld, a.depth);
    const int rd = right_along ? ty : tx, rc = right_along ? tx : ty;
    right[rd][rc] = element<T>(a.right, batch, d0 + rd, a.depth, column0 + rc, a.columns);
    __syncthreads();
#pragma unroll
    for (int d = 0; d < kTile; ++d) sum = fmaf(left[ty][d], right[d][tx], sum);
    __syncthreads();
  }
  const std::int64_t row = row0 + ty, column = column0 + tx;
  if (row >= a.rows || column >= a.columns) return;
  Out* to = static_cast<Out*>(a.out) + batch * a.out_batch + row * a.out_row + column;
  float y = a.alpha * sum;
  if (a.left_scale != nullptr) y *= a.left_scale[row];
  if (a.right_scale != nullptr) y *= a.right_scale[column];
  if (a.accumulate) y += to_float(*to);
  if (a.bias.data != nullptr) {
    y += to_float(static_cast<const Out*>(a.bias.data)[column * a.bias.column]);
  }
  *to = from_float<Out>(a.gelu ? gelu_of(y) : y);
}

// A thread per element; the loads of 16 parts are in flight, also of the last few, because waiting
// for memory is all that takes time here; the additions keep their order.
constexpr int kPartsAtOnce = 16;

__global__ void ordered_sum_kernel(const float* __restrict__ parts, std::int64_t count,
                                   std::int64_t step, std::int64_t part_row, float* __restrict__ to,
                                   std::int64_t to_row, std::int64_t rows, std::int64_t columns) {
  const std::int64_t c = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
  if (c >= columns) return;
  for (std::int64_t r = blockIdx.y * std::int64_t{blockDim.y} + threadIdx.y; r < rows;
       r += std::int64_t{gridDim.y} * blockDim.y) {
    const float* p = parts + r * part_row + c;
    float sum = to[r * to_row + c];
    for (std::int64_t i = 0; i < count; i += kPartsAtOnce) {
      float part[kPartsAtOnce];
#pragma unroll
      for (int j = 0; j < kPartsAtOnce; ++j) part[j] = i + j < count ? p[(i + j) * step] : 0;
#pragma unroll
      for (int j = 0; j < kPartsAtOnce; ++j) {
        if (i + j < count) sum += part[j];
      }
    }
    to[r * to_row + c] = sum;
  }
}

// A block takes 128 columns of one quantum, a thread a column: neighbouring threads read
// neighbouring elements, and the quanta fill the machine.
template <class X>
__global__ void quantum_sums_kernel(const X* __restrict__ x, std::int64_t x_row, std::int64_t rows,
                                    std::int64_t columns, std::int64_t quantum, float alpha,
                                    float* __restrict__ sums) {
  const std::int64_t c = blockIdx.x * std::int64_t{kThreads} + threadIdx.x;
  if (c >= columns) return;
  const std::int64_t first = blockIdx.y * quantum;
  const std::int64_t end = first + quantum < rows ? first + quantum : rows;
  float sum = 0;
#pragma unroll 8
  for (std::int64_t r = first; r < end; ++r) sum += to_float(x[r * x_row + c]);
  sums[blockIdx.y * columns + c] = alpha * sum;
}

}  // namespace

void expand(const Expand& a, void* stream) {
  const std::int64_t rows = a.to.shape[0], columns = a.to.shape[1];
  if (rows * columns == 0) return;
  const WeightScale& s = a.scale;
  const Factor factor = {reinterpret_cast<const unsigned char*>(s.data), s.row_stride,
                         s.group_stride, s.group, multiple(s.data, 4)};
  with_weight(a.from.dtype, [&](auto from) {
    with_activation(a.to.dtype, [&](auto to) {
      using S = typename decltype(from)::type;
      using D = typename decltype(to)::type;
      D* const out = static_cast<D*>(a.to.data);
      const std::int64_t size = sizeof(S), vector = sizeof(S) == 1 ? 8 : 16;
      const bool eights = in_eights(a.to) && multiple(a.from.data, vector) &&
                          (rows == 1 || a.from.strides[0] * size % vector == 0) &&
                          (s.data == nullptr || s.group_stride == 0 || s.group % 8 == 0);
      if (eights) {
        const Grid g = grid_for(rows, columns / 8);
        expand_eights<S, D><<<g.blocks, g.threads, 0, stream_of(stream)>>>(
            static_cast<const S*>(a.from.data), a.from.strides[0], out, a.to.strides[0], rows,
            columns / 8, factor);
      } else {
        const Grid g = grid_for(rows, columns);
        expand_any<S, D><<<g.blocks, g.threads, 0, stream_of(stream)>>>(
            static_cast<const unsigned char*>(a.from.data), a.from.strides[0],
            multiple(a.from.data, size), out, a.to.strides[0], rows, columns, factor);
      }
    });
  });
  check_launch("expand");
}

void plain_product(const PlainProduct& a, void* stream) {
  if (a.rows * a.columns * a.batches == 0) return;
  const dim3 blocks(blocks_for(a.rows, kTile), blocks_for(a.columns, kTile),
                    static_cast<unsigned>(a.batches));
  with_factor(a.in, [&](auto in) {
    with_activation(a.out_type, [&](auto out) {
      plain_product_kernel<typename decltype(in)::type, typename decltype(out)::type>
          <<<blocks, dim3(kTile, kTile), 0, stream_of(stream)>>>(a);
    });
  });
  check_launch("plain_product");
}

void ordered_sum(const OrderedSum& a, void* stream) {
  const std::int64_t rows = a.to.shape[0], columns = a.to.shape[1];
  if (rows * columns * a.count == 0) return;
  const Grid g = grid_for(2 * rows, columns);  // one row for a thread: twice the loads in flight
  ordered_sum_kernel<<<g.blocks, g.threads, 0, stream_of(stream)>>>(a.parts, a.count, a.step, a.row,
                                                                    static_cast<float*>(a.to.data),
                                                                    a.to.strides[0], rows, columns);
  check_launch("ordered_sum");
}

void quantum_sums(const QuantumSums& a, void* stream) {
  const std::int64_t rows = a.x.shape[0], columns = a.x.shape[1];
  if (rows * columns == 0) return;
  const dim3 blocks(blocks_for(columns, kThreads), blocks_for(rows, a.quantum));
  with_activation(a.x.dtype, [&](auto x) {
    using X = typename decltype(x)::type;
    quantum_sums_kernel<<<blocks, kThreads, 0, stream_of(stream)>>>(
        static_cast<const X*>(a.x.data), a.x.strides[0], rows, columns, a.quantum, a.alpha, a.sums);
  });
  check_launch("quantum_sums");
}

}  // namespace ballast::ops::cuda
