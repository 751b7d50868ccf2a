#include "ops/conv3d/conv3d_cuda.h"
#include "ops/kernels/cuda_kernel.cuh"

namespace ballast::ops::cuda {
namespace {

constexpr int kThreads = 256;

// Which input row or column position q of the enlarged source shows; -1: zero.
__device__ __forceinline__ int conv_source(int q, int zoom, int spread, int size) {
  if (q < 0 || q % spread != 0) return -1;
  const int at = q / spread / zoom;
  return at < size ? at : -1;
}

// A thread moves one piece of a row of columns, a T: 16 bytes where pixels consist of such pieces,
// else an element. Neighbouring threads write neighbouring pieces and, within a pixel, read them;
// what several taps read comes from the cache.
template <class T>
__global__ void patches(ConvPatches a) {
  // A panel has fewer pieces than 2^32, and 32 bits divide several times faster.
  using I = std::uint32_t;
  const I pixel = static_cast<I>(a.pixel_bytes / std::int64_t{sizeof(T)});
  const I per_row = static_cast<I>(a.row_bytes / std::int64_t{sizeof(T)});
  const I taps = static_cast<I>(a.time * a.kh * a.kw), plane = static_cast<I>(a.kh * a.kw);
  const I count = static_cast<I>(a.rows) * per_row, step = gridDim.x * I{kThreads};
  const I first = static_cast<I>(a.first), width = static_cast<I>(a.out_width);
  T* columns = reinterpret_cast<T*>(a.columns);
  for (I at = blockIdx.x * I{kThreads} + threadIdx.x; at < count; at += step) {
    const I in_row = at % per_row, tap = in_row / pixel, piece = in_row % pixel;
    T value = {};
    if (tap < taps) {
      const int i = static_cast<int>(tap / plane), in_plane = static_cast<int>(tap % plane);
      const int j = in_plane / a.kw, k = in_plane % a.kw;
      const I out = first + at / per_row;
      const int h = static_cast<int>(out / width), w = static_cast<int>(out % width);
      const int y =
          conv_source(h * a.stride_h + j - a.pad_h, a.zoom, a.spread_h, static_cast<int>(a.height));
      const int x =
          conv_source(w * a.stride_w + k - a.pad_w, a.zoom, a.spread_w, static_cast<int>(a.width));
      const std::byte* frame = i == 0 ? a.frame[0] : i == 1 ? a.frame[1] : a.frame[2];
      if (frame && y >= 0 && x >= 0) {
        value = reinterpret_cast<const T*>(frame + (y * a.width + x) * a.pixel_bytes)[piece];
      }
    }
    columns[at] = value;
  }
}

// A thread moves one element; neighbouring threads write neighbours.
template <class T>
__global__ void reorder(ConvReordering a) {
  const bool transpose = a.kind == ConvReorder::transpose, unpack = a.kind == ConvReorder::unpack;
  const std::int64_t rows = transpose ? a.channels : a.outputs;
  const T* from = reinterpret_cast<const T*>(a.from);
  T* to = reinterpret_cast<T*>(a.to);
  for (std::int64_t at = blockIdx.x * std::int64_t{kThreads} + threadIdx.x; at < rows * a.to_row;
       at += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t n = at / a.to_row, i = at % a.to_row;
    const std::int64_t inner = unpack ? a.taps : transpose ? a.outputs : a.channels;
    const std::int64_t first = i / inner, second = i % inner;
    T value = 0;
    if (unpack) {
      value = from[n * a.from_row + second * a.channels + first];
    } else if (first < a.taps) {
      value = transpose ? from[second * a.from_row + (a.taps - 1 - first) * a.channels + n]
                        : from[n * a.from_row + second * a.taps + first];
    }
    to[at] = value;
  }
}

}  // namespace

void conv_patches(const ConvPatches& a, void* stream) {
  if (a.rows == 0) return;
  bool sixteens = a.pixel_bytes % 16 == 0 && a.row_bytes % 16 == 0 &&
                  reinterpret_cast<std::uintptr_t>(a.columns) % 16 == 0;
  for (const std::byte* f : a.frame) {
    sixteens = sixteens && reinterpret_cast<std::uintptr_t>(f) % 16 == 0;
  }
  const auto launch = [&](auto* kernel, std::int64_t size) {
    kernel<<<some_blocks(a.rows * a.row_bytes / size, kThreads), kThreads, 0, stream_of(stream)>>>(
        a);
  };
  if (sixteens) {
    launch(patches<uint4>, 16);
  } else {
    launch(patches<std::uint16_t>, 2);
  }
  check_launch("conv_patches");
}

void conv_reorder(const ConvReordering& a, void* stream) {
  const std::int64_t rows = a.kind == ConvReorder::transpose ? a.channels : a.outputs;
  if (rows * a.to_row == 0) return;
  const auto launch = [&](auto* kernel) {
    kernel<<<some_blocks(rows * a.to_row, kThreads), kThreads, 0, stream_of(stream)>>>(a);
  };
  if (a.size == 4) {
    launch(reorder<std::uint32_t>);
  } else {
    launch(reorder<std::uint16_t>);
  }
  check_launch("conv_reorder");
}

}  // namespace ballast::ops::cuda
