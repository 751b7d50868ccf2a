#include "ops/cuda_kernel.cuh"
#include "ops/fold_blocks_cuda.h"

namespace ballast::ops::cuda {
namespace {

constexpr int kThreads = 256;

struct Sizes {
  std::int64_t height, width, channels;  // of the wide tensor
  std::int64_t folded_height, folded_width, folded_channels, group;
  BlockShape block;
};

// Where a flat index of a folded position lies in the wide tensor; -1: nowhere.
__device__ std::int64_t wide_at(const Sizes& s, std::int64_t position, std::int64_t flat) {
  const BlockShape& b = s.block;
  const std::int64_t fast = flat % b.space, slow = flat / b.space % b.space;
  const std::int64_t a = flat / (b.space * b.space) % b.time;
  const std::int64_t channel = flat / (b.space * b.space) / b.time;
  const std::int64_t p = b.columns_first ? fast : slow, q = b.columns_first ? slow : fast;
  const std::int64_t x = position % s.folded_width, y = position / s.folded_width % s.folded_height;
  const std::int64_t frame = position / s.folded_width / s.folded_height * b.time + a - b.lead;
  if (frame < 0) return -1;
  return ((frame * s.height + y * b.space + p) * s.width + x * b.space + q) * s.channels + channel;
}

// A thread makes one folded element.
template <class W, class F>
__global__ void fold(Sizes s, const W* wide, F* folded, std::int64_t count, float scale, bool add) {
  for (std::int64_t i = blockIdx.x * std::int64_t{kThreads} + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t position = i / s.folded_channels, n = i % s.folded_channels;
    float sum = 0;
    for (std::int64_t g = 0; g < s.group; ++g) {
      const std::int64_t at = wide_at(s, position, n * s.group + g);
      if (at >= 0) sum += to_float(wide[at]);
    }
    const float old = add ? to_float(folded[i]) : 0.0f;
    folded[i] = from_float<F>(old + sum * scale);
  }
}

// A thread makes one wide element; neighbours are neighbouring channels of a pixel.
template <class W, class F>
__global__ void unfold(Sizes s, const F* folded, W* wide, std::int64_t count, float scale,
                       bool add) {
  const BlockShape& b = s.block;
  for (std::int64_t i = blockIdx.x * std::int64_t{kThreads} + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t channel = i % s.channels, x = i / s.channels % s.width;
    const std::int64_t y = i / s.channels / s.width % s.height;
    const std::int64_t frame = i / s.channels / s.width / s.height + b.lead;
    const std::int64_t p = y % b.space, q = x % b.space;
    const std::int64_t slow = b.columns_first ? q : p, fast = b.columns_first ? p : q;
    const std::int64_t flat =
        ((channel * b.time + frame % b.time) * b.space + slow) * b.space + fast;
    const std::int64_t position =
        (frame / b.time * s.folded_height + y / b.space) * s.folded_width + x / b.space;
    const float value = to_float(folded[position * s.folded_channels + flat / s.group]);
    const float old = add ? to_float(wide[i]) : 0.0f;
    wide[i] = from_float<W>(old + value * scale);
  }
}

Sizes sizes_of(const BlockMove& a) {
  Sizes s = {};
  s.height = a.wide.shape[1];
  s.width = a.wide.shape[2];
  s.channels = a.wide.shape[3];
  s.folded_height = a.folded.shape[1];
  s.folded_width = a.folded.shape[2];
  s.folded_channels = a.folded.shape[3];
  s.group = s.channels * a.block.time * a.block.space * a.block.space / s.folded_channels;
  s.block = a.block;
  return s;
}

// f(wide type, folded type)
template <class Call>
void with_types(const BlockMove& a, Call&& f) {
  with_activation(a.wide.dtype, [&](auto wide) {
    with_activation(a.folded.dtype, [&](auto folded) { f(wide, folded); });
  });
}

}  // namespace

void fold_blocks(const BlockMove& a, void* stream) {
  const std::int64_t count = a.folded.elements();
  if (count == 0) return;
  with_types(a, [&](auto wide, auto folded) {
    using W = typename decltype(wide)::type;
    using F = typename decltype(folded)::type;
    fold<W, F><<<some_blocks(count, kThreads), kThreads, 0, stream_of(stream)>>>(
        sizes_of(a), static_cast<const W*>(a.wide.data), static_cast<F*>(a.folded.data), count,
        a.scale, a.accumulate);
  });
  check_launch("fold_blocks");
}

void unfold_blocks(const BlockMove& a, void* stream) {
  const std::int64_t count = a.wide.elements();
  if (count == 0) return;
  with_types(a, [&](auto wide, auto folded) {
    using W = typename decltype(wide)::type;
    using F = typename decltype(folded)::type;
    unfold<W, F><<<some_blocks(count, kThreads), kThreads, 0, stream_of(stream)>>>(
        sizes_of(a), static_cast<const F*>(a.folded.data), static_cast<W*>(a.wide.data), count,
        a.scale, a.accumulate);
  });
  check_launch("unfold_blocks");
}

}  // namespace ballast::ops::cuda
