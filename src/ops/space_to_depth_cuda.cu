#include "ops/kernels/cuda_kernel.cuh"
#include "ops/space_to_depth_cuda.h"

namespace ballast::ops::cuda {
namespace {

constexpr int kThreads = 256;

// I: what elements are counted in; 32 bits divide several times faster and nearly always do.
template <class I>
struct Sizes {
  I height, width, channels;  // of the wide tensor
  I folded_height, folded_width, folded_channels, group;
  I time, space, lead;
  bool columns_first;
};

// A thread makes one folded element.
template <class I, class W, class F>
__global__ void fold(Sizes<I> s, const W* wide, F* folded, I count, float scale, bool add) {
  const I step = gridDim.x * I{kThreads};
  for (I i = blockIdx.x * I{kThreads} + threadIdx.x; i < count; i += step) {
    const I position = i / s.folded_channels, n = i % s.folded_channels;
    const I x = position % s.folded_width, upper = position / s.folded_width;
    const I y = upper % s.folded_height, first = upper / s.folded_height * s.time;
    float sum = 0;
    for (I flat = n * s.group; flat < (n + 1) * s.group; ++flat) {
      const I fast = flat % s.space, slow = flat / s.space % s.space;
      const I outer = flat / (s.space * s.space), frame = first + outer % s.time;
      if (frame < s.lead) continue;
      const I p = s.columns_first ? fast : slow, q = s.columns_first ? slow : fast;
      const I row = (frame - s.lead) * s.height + y * s.space + p;
      sum += to_float(wide[(row * s.width + x * s.space + q) * s.channels + outer / s.time]);
    }
    const float old = add ? to_float(folded[i]) : 0.0f;
    folded[i] = from_float<F>(old + sum * scale);
  }
}

// A thread makes one wide element; neighbours are neighbouring channels of a pixel.
template <class I, class W, class F>
__global__ void unfold(Sizes<I> s, const F* folded, W* wide, I count, float scale, bool add) {
  const I step = gridDim.x * I{kThreads};
  for (I i = blockIdx.x * I{kThreads} + threadIdx.x; i < count; i += step) {
    const I pixel = i / s.channels, channel = i % s.channels;
    const I x = pixel % s.width, upper = pixel / s.width;
    const I y = upper % s.height, frame = upper / s.height + s.lead;
    const I p = y % s.space, q = x % s.space;
    const I slow = s.columns_first ? q : p, fast = s.columns_first ? p : q;
    const I flat = ((channel * s.time + frame % s.time) * s.space + slow) * s.space + fast;
    const I row = frame / s.time * s.folded_height + y / s.space;
    const I position = row * s.folded_width + x / s.space;
    const float value = to_float(folded[position * s.folded_channels + flat / s.group]);
    const float old = add ? to_float(wide[i]) : 0.0f;
    wide[i] = from_float<W>(old + value * scale);
  }
}

template <class I>
Sizes<I> sizes_of(const BlockMove& a) {
  Sizes<I> s = {};
  s.height = static_cast<I>(a.wide.shape[1]);
  s.width = static_cast<I>(a.wide.shape[2]);
  s.channels = static_cast<I>(a.wide.shape[3]);
  s.folded_height = static_cast<I>(a.folded.shape[1]);
  s.folded_width = static_cast<I>(a.folded.shape[2]);
  s.folded_channels = static_cast<I>(a.folded.shape[3]);
  s.time = static_cast<I>(a.block.time);
  s.space = static_cast<I>(a.block.space);
  s.lead = static_cast<I>(a.block.lead);
  s.group = s.channels * s.time * s.space * s.space / s.folded_channels;
  s.columns_first = a.block.columns_first;
  return s;
}

// f(index type, wide type, folded type)
template <class Call>
void with_types(const BlockMove& a, Call&& f) {
  // Room for the step behind the last element.
  const bool small =
      a.wide.elements() < (std::int64_t{1} << 30) && a.folded.elements() < (std::int64_t{1} << 30);
  with_activation(a.wide.dtype, [&](auto wide) {
    with_activation(a.folded.dtype, [&](auto folded) {
      if (small) return f(Type<std::uint32_t>(), wide, folded);
      f(Type<std::uint64_t>(), wide, folded);
    });
  });
}

}  // namespace

void space_to_depth(const BlockMove& a, void* stream) {
  const std::int64_t count = a.folded.elements();
  if (count == 0) return;
  with_types(a, [&](auto index, auto wide, auto folded) {
    using I = typename decltype(index)::type;
    using W = typename decltype(wide)::type;
    using F = typename decltype(folded)::type;
    fold<I, W, F><<<some_blocks(count, kThreads), kThreads, 0, stream_of(stream)>>>(
        sizes_of<I>(a), static_cast<const W*>(a.wide.data), static_cast<F*>(a.folded.data),
        static_cast<I>(count), a.scale, a.accumulate);
  });
  check_launch("space_to_depth");
}

void depth_to_space(const BlockMove& a, void* stream) {
  const std::int64_t count = a.wide.elements();
  if (count == 0) return;
  with_types(a, [&](auto index, auto wide, auto folded) {
    using I = typename decltype(index)::type;
    using W = typename decltype(wide)::type;
    using F = typename decltype(folded)::type;
    unfold<I, W, F><<<some_blocks(count, kThreads), kThreads, 0, stream_of(stream)>>>(
        sizes_of<I>(a), static_cast<const F*>(a.folded.data), static_cast<W*>(a.wide.data),
        static_cast<I>(count), a.scale, a.accumulate);
  });
  check_launch("depth_to_space");
}

}  // namespace ballast::ops::cuda
