#include "ops/kernels/convert_cuda.cuh"
#include "ops/linear/quantize_rows_cuda.h"

namespace ballast::ops::cuda {
namespace {

// One block takes one row: 256 threads keep enough loads in flight for the link, over which a row
// comes once, 16 bytes at a time where it is aligned, into shared memory. A row that does not fit
// there is read twice.
constexpr int kThreads = 256;
// Of the 48 KiB that need no permission; the maximum takes a few bytes of them.
constexpr std::int64_t kShared = 47 << 10;

struct Row {
  const unsigned char* data;  // in shared or any other memory
  bool aligned;
};

template <DType W>
__device__ __forceinline__ float element(const Row& row, std::int64_t k) {
  constexpr int kSize = bytes_of(W);
  return widen<W>(static_cast<std::uint32_t>(load_code(row.data + k * kSize, kSize, row.aligned)));
}

__device__ Row fetch(const unsigned char* from, std::int64_t bytes, int size, bool whole,
                     bool aligned, unsigned char* shared) {
  if (bytes > kShared) return {from, aligned};
  if (whole) {
    for (std::int64_t i = threadIdx.x; i < bytes / 16; i += kThreads) {
      reinterpret_cast<uint4*>(shared)[i] = reinterpret_cast<const uint4*>(from)[i];
    }
  } else {
    for (std::int64_t i = threadIdx.x; i < bytes / size; i += kThreads) {
      store_code(shared + i * size, load_code(from + i * size, size, aligned), size, true);
    }
  }
  __syncthreads();
  return {shared, true};
}

// The bits of max|w|, the same in every thread: NaN is above infinity is above all numbers.
template <DType W>
__device__ std::uint32_t max_magnitude(const Row& row, std::int64_t columns) {
  __shared__ std::uint32_t warps[kThreads / 32];
  std::uint32_t most = 0;
  for (std::int64_t k = threadIdx.x; k < columns; k += kThreads) {
    most = max(most, __float_as_uint(element<W>(row, k)) & 0x7fffffffu);
  }
  most = __reduce_max_sync(0xffffffffu, most);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = most;
  __syncthreads();
  for (const std::uint32_t w : warps) most = max(most, w);
  return most;
}

__device__ __forceinline__ float scale_from(std::uint32_t magnitude, DType q) {
  const float most = q == DType::i8 ? 127.0f : q == DType::f8_e4m3 ? 448.0f : 57344.0f;
  const float scale = __fdiv_rn(__uint_as_float(magnitude), most);
  return scale < 1e-8f ? 1e-8f : scale;
}

__device__ __forceinline__ unsigned char quantized(float x, DType q) {
  if (q == DType::i8) {
    x = fminf(fmaxf(x, -127.0f), 127.0f);
    // 1.5 * 2^23 has 1 as its last place: the addition rounds to an integer in the low bits.
    return static_cast<unsigned char>(__float_as_uint(__fadd_rn(x, 12582912.0f)));
  }
  return static_cast<unsigned char>(q == DType::f8_e4m3 ? narrow<DType::f8_e4m3>(x, true)
                                                        : narrow<DType::f8_e5m2>(x, true));
}

struct Operands {
  const unsigned char* w;
  std::int64_t w_step;  // bytes
  bool whole, aligned;
  unsigned char* q;
  std::int64_t q_step, columns;
  DType q_type;
  float* scale;
};

// per_row: makes the scale, too.
template <DType W>
__global__ void quantize(Operands a, bool per_row) {
  extern __shared__ __align__(16) unsigned char shared[];
  constexpr int kSize = bytes_of(W);
  const std::int64_t n = blockIdx.x;
  const Row row = fetch(a.w + n * a.w_step, a.columns * kSize, kSize, a.whole, a.aligned, shared);
  float scale;
  if (per_row) {
    scale = scale_from(max_magnitude<W>(row, a.columns), a.q_type);
    if (threadIdx.x == 0) a.scale[n] = scale;
  } else {
    scale = *a.scale;
  }
  unsigned char* q = a.q + n * a.q_step;
  for (std::int64_t k = threadIdx.x; k < a.columns; k += kThreads) {
    q[k] = quantized(__fdiv_rn(element<W>(row, k), scale), a.q_type);
  }
}

// A maximum of integers does not depend on the order; it waits in the scale's memory.
template <DType W>
__global__ void largest(Operands a) {
  const Row row = {a.w + blockIdx.x * a.w_step, a.aligned};
  const std::uint32_t most = max_magnitude<W>(row, a.columns);
  if (threadIdx.x == 0) atomicMax(reinterpret_cast<unsigned*>(a.scale), most);
}

__global__ void make_scale(float* scale, DType q) {
  *scale = scale_from(__float_as_uint(*scale), q);
}

// The path of activations: bf16 to f8_e4m3, rows of at most 1024 pieces of sixteen elements, which
// a thread loads as two words and stores as one. A block keeps a thread for every piece and goes
// from row to row; the next row is on its way while this one is reduced, and a row takes one
// barrier. Up to three blocks of C / 16 threads fill a multiprocessor.
constexpr std::int64_t kPiece = 16, kMaxPieces = 1024;

__device__ __forceinline__ float element_of(std::uint32_t pair, int i) {
  return __uint_as_float(i == 0 ? pair << 16 : pair & 0xffff0000u);
}

__device__ __forceinline__ std::uint32_t max_of_pair(std::uint32_t pair, std::uint32_t most) {
  return max(most, max((pair << 16) & 0x7fffffffu, pair & 0x7fff0000u));
}

// x / scale, rounded once: the quotient by the reciprocal, corrected by its remainder.
__device__ __forceinline__ float quotient(float x, float scale, float reciprocal) {
  const float q = __fmul_rn(x, reciprocal);
  return __fmaf_rn(__fmaf_rn(-q, scale, x), reciprocal, q);
}

__device__ __forceinline__ std::uint32_t two_codes(std::uint32_t pair, float scale,
                                                   float reciprocal) {
  return __nv_cvt_float2_to_fp8x2(make_float2(quotient(element_of(pair, 0), scale, reciprocal),
                                              quotient(element_of(pair, 1), scale, reciprocal)),
                                  __NV_SATFINITE, __NV_E4M3);
}

__global__ void __launch_bounds__(1024)
    quantize_sixteens(const unsigned char* w, std::int64_t w_step, unsigned char* q,
                      std::int64_t q_step, float* scales, std::int64_t rows, int pieces) {
  __shared__ std::uint32_t warps[2][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const bool mine = static_cast<int>(threadIdx.x) < pieces;
  const auto load = [&](std::int64_t row, uint4& a, uint4& b) {
    a = b = make_uint4(0, 0, 0, 0);
    if (!mine || row >= rows) return;
    const uint4* from = reinterpret_cast<const uint4*>(w + row * w_step) + 2 * threadIdx.x;
    a = __ldcs(from);
    b = __ldcs(from + 1);
  };
  uint4 a, b, next_a, next_b;
  load(blockIdx.x, a, b);
  int parity = 0;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x, parity ^= 1) {
    load(row + gridDim.x, next_a, next_b);
    std::uint32_t most = 0;
    most = max_of_pair(a.x, max_of_pair(a.y, max_of_pair(a.z, max_of_pair(a.w, most))));
    most = max_of_pair(b.x, max_of_pair(b.y, max_of_pair(b.z, max_of_pair(b.w, most))));
    most = __reduce_max_sync(0xffffffffu, most);
    if (lane == 0) warps[parity][warp] = most;
    __syncthreads();
    const bool there = lane < static_cast<int>(blockDim.x) / 32;
    most = __reduce_max_sync(0xffffffffu, there ? warps[parity][lane] : 0u);
    const float scale = scale_from(most, DType::f8_e4m3), reciprocal = __frcp_rn(scale);
    const auto four = [&](std::uint32_t low, std::uint32_t high) {
      return two_codes(low, scale, reciprocal) | two_codes(high, scale, reciprocal) << 16;
    };
    if (mine) {
      reinterpret_cast<uint4*>(q + row * q_step)[threadIdx.x] =
          make_uint4(four(a.x, a.y), four(a.z, a.w), four(b.x, b.y), four(b.z, b.w));
    }
    if (threadIdx.x == 0) scales[row] = scale;
    a = next_a;
    b = next_b;
  }
}

bool in_sixteens(const QuantizeRows& a) {
  return a.w.dtype == DType::bf16 && a.q.dtype == DType::f8_e4m3 && a.w.shape[1] > 0 &&
         a.w.shape[1] % kPiece == 0 && a.w.shape[1] <= kMaxPieces * kPiece &&
         aligned_to(a.w.data, 16) && a.w.strides[0] % 8 == 0 && aligned_to(a.q.data, 16) &&
         a.q.strides[0] % 16 == 0;
}

void launch_sixteens(const QuantizeRows& a, void* stream) {
  const std::int64_t rows = a.w.shape[0], pieces = a.w.shape[1] / kPiece;
  const auto threads = static_cast<unsigned>((pieces + 31) / 32 * 32);
  const std::int64_t most = 132 * (threads <= 682 ? 3 : 2048 / threads);
  const std::int64_t turns = (rows + most - 1) / most;
  quantize_sixteens<<<blocks_for(rows, turns), threads, 0, stream_of(stream)>>>(
      static_cast<const unsigned char*>(a.w.data), a.w.strides[0] * 2,
      static_cast<unsigned char*>(a.q.data), a.q.strides[0], static_cast<float*>(a.scale.data),
      rows, static_cast<int>(pieces));
  check_launch("quantize_rows");
}

}  // namespace

void quantize_rows(const QuantizeRows& a, void* stream) {
  const std::int64_t rows = a.w.shape[0], columns = a.w.shape[1];
  const bool per_row = a.scale.shape[0] == rows;
  if (per_row && rows > 0 && in_sixteens(a)) return launch_sixteens(a, stream);
  const auto launch = [&](auto code) {
    constexpr DType W = decltype(code)::value;
    constexpr std::int64_t kSize = bytes_of(W);
    const std::int64_t bytes = columns * kSize, step = a.w.strides[0] * kSize;
    const Operands o = {static_cast<const unsigned char*>(a.w.data),
                        step,
                        aligned_to(a.w.data, 16) && bytes % 16 == 0 && step % 16 == 0,
                        aligned_to(a.w.data, kSize),
                        static_cast<unsigned char*>(a.q.data),
                        a.q.strides[0],
                        columns,
                        a.q.dtype,
                        static_cast<float*>(a.scale.data)};
    const auto blocks = static_cast<unsigned>(rows);
    if (!per_row) {
      check_cuda(cudaMemsetAsync(o.scale, 0, sizeof(float), stream_of(stream)), "quantize_rows");
      if (rows > 0) {
        largest<W><<<blocks, kThreads, 0, stream_of(stream)>>>(o);
        check_launch("quantize_rows");
      }
      make_scale<<<1, 1, 0, stream_of(stream)>>>(o.scale, a.q.dtype);
      check_launch("quantize_rows");
    }
    if (rows == 0) return;
    const auto shared = static_cast<std::size_t>(bytes <= kShared ? (bytes + 15) / 16 * 16 : 0);
    quantize<W><<<blocks, kThreads, shared, stream_of(stream)>>>(o, per_row);
    check_launch("quantize_rows");
  };
  if (a.w.dtype == DType::f32) return launch(Code<DType::f32>());
  if (a.w.dtype == DType::f16) return launch(Code<DType::f16>());
  return launch(Code<DType::bf16>());
}

}  // namespace ballast::ops::cuda
