#include "ops/elementwise_cuda.cuh"
#include "ops/global_norm_cuda.h"
#include "ops/ordered_sum_cuda.cuh"
#include "ops/row_kernel.cuh"

namespace ballast::ops::cuda {
namespace {

__global__ void make_factor(const double* sum, double max_norm, float* factor, float* norm_out) {
  const double norm = sqrt(*sum), ratio = max_norm / (norm + 1e-6);
  *factor = static_cast<float>(max_norm <= 0 || ratio > 1 ? 1 : ratio);  // a NaN ratio stays one
  if (norm_out != nullptr) *norm_out = static_cast<float>(norm);
}

template <class T>
struct Scaling {
  T* x;
  const float* factor;
  template <bool kWhole>
  __device__ void run(std::int64_t i, int count) const {
    const float by = *factor;
    float v[8];
    load_some<kWhole>(x + i, count, v);
#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] *= by;
    store_some<kWhole>(x + i, count, v);
  }
};

// |x| in f64 for finite x: its bits where those of a double are, times 2^896. A conversion would be
// as exact and is many times slower: there are few units for it.
__device__ __forceinline__ double magnitude(float x) {
  const auto bits = static_cast<long long>(__float_as_uint(x) & 0x7fffffffu);
  return __longlong_as_double(bits << 29) * 0x1p896;
}

// The squares of aligned tensors in the same order, eight elements to a load: a piece belongs to
// two threads, each with eight of its sixteen sums. The next loads are on their way while these are
// added up.
constexpr int kSquareThreads = 2 * static_cast<int>(kSumPieces);

template <class T>
__device__ __forceinline__ double square_piece(const T* x, std::int64_t begin, std::int64_t end) {
  constexpr int kFlight = sizeof(T) == 2 ? 8 : 4;
  double sums[8] = {};
  float finite = 0;  // or NaN
  const auto add = [&](const Eight<T>& e) {
    float v[8];
    e.unpack(v);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const double a = magnitude(v[k]);
      sums[k] = fma(a, a, sums[k]);
      finite = __fmaf_rn(v[k], 0.0f, finite);
    }
  };
  const std::int64_t first = begin + threadIdx.x % 2 * 8;
  const std::int64_t sixteens = (end - begin) / 16, whole = sixteens / kFlight * kFlight;
  Eight<T> next[kFlight];
  const auto load = [&](std::int64_t s) {
#pragma unroll
    for (int k = 0; k < kFlight; ++k) next[k].load_once(x + first + (s + k) * 16);
  };
  if (whole > 0) load(0);
#pragma unroll 1
  for (std::int64_t s = 0; s < whole; s += kFlight) {
    Eight<T> now[kFlight];
#pragma unroll
    for (int k = 0; k < kFlight; ++k) now[k] = next[k];
    if (s + kFlight < whole) load(s + kFlight);
#pragma unroll
    for (int k = 0; k < kFlight; ++k) add(now[k]);
  }
  for (std::int64_t s = whole; s < sixteens; ++s) {
    next[0].load_once(x + first + s * 16);
    add(next[0]);
  }
  if (!(finite == 0)) {  // infinity or NaN: once more, by conversions
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      sums[k] = 0;
#pragma unroll 1
      for (std::int64_t s = 0; s < sixteens; ++s) {
        const float v = to_float(x[first + s * 16 + k]);
        sums[k] = add_product(v, v, sums[k]);
      }
    }
  }
  const std::int64_t rest = first + sixteens * 16;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    if (rest + k < end) {
      const float v = to_float(x[rest + k]);
      sums[k] = add_product(v, v, sums[k]);
    }
  }
  // The sixteen by halves: first those of the other thread, then one's own.
#pragma unroll
  for (int k = 0; k < 8; ++k) sums[k] += __shfl_xor_sync(0xffffffffu, sums[k], 1);
#pragma unroll
  for (int half = 4; half > 0; half /= 2) {
#pragma unroll
    for (int k = 0; k < half; ++k) sums[k] += sums[k + half];
  }
  return sums[0];
}

template <class T>
__global__ void __launch_bounds__(kSquareThreads)
    square_blocks(const T* x, std::int64_t first, std::int64_t n, double* partial,
                  unsigned* finished, double* total) {
  __shared__ double piece[kSumPieces];
  const int k = threadIdx.x / 2;
  const std::int64_t at = (first + blockIdx.x) * kSumBlock + k * kSumPiece;
  const std::int64_t begin = at < n ? at : n, end = n - begin < kSumPiece ? n : begin + kSumPiece;
  const double sum = square_piece(x, begin, end);
  if (threadIdx.x % 2 == 0) piece[k] = sum;
  add_pieces(piece, partial, finished, total);
}

}  // namespace

void sum_squares(const SumSquares& a, void* stream) {
  with_activation(a.x.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    const T* x = static_cast<const T*>(a.x.data);
    const std::int64_t n = a.x.elements();
    double* total = static_cast<double*>(a.sum.data);
    const char* name = "sum_squares";
    if (!sixteen(x)) return add_ordered(SquareTerm<T>{x}, n, total, a.scratch, stream, name);
    for_sum_launches(n, a.scratch, name,
                     [&](std::int64_t first, unsigned blocks, unsigned* finished) {
                       square_blocks<T><<<blocks, kSquareThreads, 0, stream_of(stream)>>>(
                           x, first, n, a.scratch, finished, total);
                     });
  });
}

void clip_factor(const ClipFactor& a, void* stream) {
  make_factor<<<1, 1, 0, stream_of(stream)>>>(static_cast<const double*>(a.sum.data), a.max_norm,
                                              static_cast<float*>(a.factor.data),
                                              static_cast<float*>(a.norm.data));
  check_launch("clip_factor");
}

void scale_by(const ScaleBy& a, void* stream) {
  with_activation(a.x.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    run_each(Scaling<T>{static_cast<T*>(a.x.data), static_cast<const float*>(a.factor.data)},
             a.x.elements(), sixteen(a.x.data), stream, "scale_by");
  });
}

}  // namespace ballast::ops::cuda
