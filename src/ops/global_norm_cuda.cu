#include "ops/global_norm_cuda.h"
#include "ops/kernels/elementwise_cuda.cuh"
#include "ops/kernels/ordered_sum_cuda.cuh"

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

struct ProductTerm {
  const float *x, *y;
  struct Item {
    float x, y;
  };
  __device__ ProductTerm begin() const { return *this; }
  __device__ Item load(std::int64_t i) const { return {x[i], y[i]}; }
  __device__ double add(const Item& item, std::int64_t, double sum) const {
    return add_product(item.x, item.y, sum);
  }
  __device__ double finish(double sum) const { return sum; }
};

// One thread: the sum is there.
__global__ void make_limit(const double* sum, double scale, double max_norm, float* factor) {
  const double norm = scale * sqrt(*sum);
  *factor = static_cast<float>(norm > max_norm ? sqrt(max_norm / norm) : 1);
}

// ---- sums of squares
//
// A block of threads per block of kSumBlock elements, through all tensors of a launch; four threads
// per piece, each with four of its sixteen sums, and so eight neighbouring pieces to a warp. It
// loads 512 bytes of one after the other, in whole lines, and passes them on in shared memory:
// threads that read their own sums' elements would ask for 32 bytes here and there. The sums of
// blocks lie in groups, a tensor's from a new group on, and the block of threads that comes last
// adds them.
constexpr int kSquareThreads = 4 * kSumPieces, kWarpPieces = 8, kTileBytes = 512;
constexpr int kLaunchGroups = static_cast<int>(kSumPartials / kGroupBlocks);
static_assert(kSumPartials % kGroupBlocks == 0, "launches end with groups");

template <class T>
struct alignas(4 * sizeof(T)) FourOf {
  T e[4];
};

// What a warp passes on: so many bytes of each of its pieces, apart by so much that threads of
// different pieces read different banks.
template <class T>
struct WarpTile {
  static constexpr int kStep = kTileBytes + 16 * sizeof(T), kRows = kTileBytes / (16 * sizeof(T));
  alignas(16) unsigned char bytes[kWarpPieces * kStep];
};

template <class T>
struct Squared {
  const T* x[kSquareTensors];
  std::int64_t elements[kSquareTensors];
  // Of all tensors before each and, at the end, of all.
  unsigned blocks[kSquareTensors + 1], groups[kSquareTensors + 1];
  int count;

  // The tensor that has number k of these.
  static __device__ __forceinline__ int tensor_of(const unsigned* before, int count, unsigned k) {
    int low = 0, high = count;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (before[middle] <= k ? low : high) = middle;
    }
    return low;
  }
};

__device__ __forceinline__ void add_four(const float (&v)[4], double (&sum)[4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) sum[k] = add_product(v[k], v[k], sum[k]);
}

// Sums 4 r ... 4 r + 3 of the sixteen of a piece, r being the thread's number among its four. x:
// where the eight whole pieces of the warp begin, aligned to 16 bytes.
template <class T>
__device__ __forceinline__ void sums_of_whole(const T* x, WarpTile<T>& tile, double (&sum)[4]) {
  constexpr int kTiles = static_cast<int>(kSumPiece * sizeof(T) / kTileBytes);
  const int lane = threadIdx.x % 32,
            mine = lane / 4 * WarpTile<T>::kStep + lane % 4 * 4 * sizeof(T);
  const auto* from = reinterpret_cast<const uint4*>(x) + lane;
  uint4 ahead[kWarpPieces];
  const auto load = [&](int t) {
#pragma unroll
    for (int p = 0; p < kWarpPieces; ++p) ahead[p] = from[(p * kTiles + t) * (kTileBytes / 16)];
  };
  load(0);
#pragma unroll 1
  for (int t = 0; t < kTiles; ++t) {
    __syncwarp();
#pragma unroll
    for (int p = 0; p < kWarpPieces; ++p) {
      *reinterpret_cast<uint4*>(tile.bytes + p * WarpTile<T>::kStep + lane * 16) = ahead[p];
    }
    __syncwarp();
    if (t + 1 < kTiles) load(t + 1);
#pragma unroll
    for (int row = 0; row < WarpTile<T>::kRows; ++row) {
      const auto four =
          *reinterpret_cast<const FourOf<T>*>(tile.bytes + mine + row * 16 * sizeof(T));
      const float v[4] = {to_float(four.e[0]), to_float(four.e[1]), to_float(four.e[2]),
                          to_float(four.e[3])};
      add_four(v, sum);
    }
  }
}

// ... of pieces anywhere that may end early.
template <class T>
__device__ __forceinline__ void sums_of_any(const T* x, std::int64_t begin, std::int64_t end,
                                            double (&sum)[4]) {
  for (std::int64_t i = begin + threadIdx.x % 4 * 4; i < end; i += 16) {
    float v[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) v[k] = i + k < end ? to_float(x[i + k]) : 0.0f;
    add_four(v, sum);
  }
}

// All of the sixteen by halves; in the first of the four threads.
__device__ __forceinline__ double add_sixteen(double (&sum)[4]) {
#pragma unroll
  for (int half = 2; half > 0; half /= 2) {
#pragma unroll
    for (int k = 0; k < 4; ++k) sum[k] += __shfl_down_sync(0xffffffffu, sum[k], half, 4);
  }
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

template <class T>
__global__ void __launch_bounds__(kSquareThreads, 8)
    add_squares(const __grid_constant__ Squared<T> all, double* partial, unsigned* finished,
                double* total) {
  static_assert(kGroupBlocks == 64, "two to a lane");
  __shared__ double piece[kSumPieces], group[kLaunchGroups];
  const int tensor = all.tensor_of(all.blocks, all.count, blockIdx.x);
  const std::int64_t block = blockIdx.x - all.blocks[tensor], n = all.elements[tensor];
  __shared__ WarpTile<T> tile[kSquareThreads / 32];
  const T* const x = all.x[tensor];
  const int warp = threadIdx.x / 32;
  const std::int64_t first = block * kSumBlock + warp * (kWarpPieces * kSumPiece);
  double sum[4] = {0, 0, 0, 0};
  if (reinterpret_cast<std::uintptr_t>(x) % 16 == 0 &&
      n - first >= kWarpPieces * kSumPiece) {  // the same for the whole warp
    sums_of_whole(x + first, tile[warp], sum);
  } else {
    const std::int64_t at = first + threadIdx.x % 32 / 4 * kSumPiece;
    const std::int64_t begin = at < n ? at : n;
    sums_of_any(x, begin, n - begin < kSumPiece ? n : begin + kSumPiece, sum);
  }
  const double of_piece = add_sixteen(sum);
  if (threadIdx.x % 4 == 0) piece[threadIdx.x / 4] = of_piece;
  __syncthreads();
  double* place = partial + all.groups[tensor] * kGroupBlocks + block;
  if (!comes_last(add_pieces(piece), place, finished)) return;
  // volatile: other multiprocessors wrote it, so the first-level cache is not asked
  const volatile double* const sums = partial;
  const int lane = threadIdx.x % 32, groups = static_cast<int>(all.groups[all.count]);
  for (int g = threadIdx.x / 32; g < groups; g += kSquareThreads / 32) {
    const int of = all.tensor_of(all.groups, all.count, g);
    const unsigned blocks = all.blocks[of + 1] - all.blocks[of];
    const unsigned k = (g - all.groups[of]) * 64 + lane;
    const volatile double* x = sums + g * 64 + lane;
    double s = (k < blocks ? x[0] : 0.0) + (k + 32 < blocks ? x[32] : 0.0);
#pragma unroll
    for (int half = 16; half > 0; half /= 2) s += __shfl_down_sync(0xffffffffu, s, half);
    if (lane == 0) group[g] = s;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    double s = *total;
    for (int g = 0; g < groups; ++g) s += group[g];
    *total = s;
    *finished = 0;
  }
}

template <class T>
void add_squares_of(const SumSquares& a, void* stream) {
  Squared<T> all;
  all.count = 0;
  all.blocks[0] = all.groups[0] = 0;
  clear_finished_blocks(a.scratch, stream, "sum_squares");
  const auto launch = [&] {
    if (all.count == 0) return;
    add_squares<<<all.blocks[all.count], kSquareThreads, 0, stream_of(stream)>>>(
        all, a.scratch, finished_blocks(a.scratch), static_cast<double*>(a.sum.data));
    check_launch("sum_squares");
    all.count = 0;
  };
  for (int k = 0; k < a.count; ++k) {
    const std::int64_t n = a.x[k].elements();
    for (std::int64_t done = 0; done < n;) {
      if (all.count == kSquareTensors || all.groups[all.count] == kLaunchGroups) launch();
      const std::int64_t room = (kLaunchGroups - all.groups[all.count]) * kSumGroup;
      const std::int64_t here = n - done < room ? n - done : room;
      all.x[all.count] = static_cast<const T*>(a.x[k].data) + done;
      all.elements[all.count] = here;
      ++all.count;
      all.blocks[all.count] = all.blocks[all.count - 1] + blocks_for(here, kSumBlock);
      all.groups[all.count] = all.groups[all.count - 1] + blocks_for(here, kSumGroup);
      done += here;
    }
  }
  launch();
}

}  // namespace

void sum_squares(const SumSquares& a, void* stream) {
  if (a.count == 0) return;
  with_activation(a.x[0].dtype,
                  [&](auto t) { add_squares_of<typename decltype(t)::type>(a, stream); });
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

void limit_factor(const LimitFactor& a, void* stream) {
  double* sum = a.scratch + kSumPartials;
  check_cuda(cudaMemsetAsync(sum, 0, sizeof(double), stream_of(stream)), "limit_factor");
  add_ordered(
      ProductTerm{static_cast<const float*>(a.ga.data), static_cast<const float*>(a.gb.data)},
      a.ga.elements(), sum, a.scratch, stream, "limit_factor");
  make_limit<<<1, 1, 0, stream_of(stream)>>>(sum, a.scale, a.max_norm,
                                             static_cast<float*>(a.factor.data));
  check_launch("limit_factor");
}

}  // namespace ballast::ops::cuda
