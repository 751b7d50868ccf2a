#include "ops/kernels/row_simd.h"
#include "ops/space_to_depth.h"

namespace ballast::ops::cpu::BALLAST_ISA {
namespace {

namespace v = simd::BALLAST_ISA;

float get(const ConstTensorView& t, std::int64_t at) {
  float x[v::kLanes];
  v::convert_in({t.data + at * (t.dtype == DType::f32 ? 4 : 2), t.dtype}, 0, 1, x);
  return x[0];
}

void put(const TensorView& t, std::int64_t at, float x) {
  float all[v::kLanes] = {x};
  v::convert_out(all, {t.data + at * (t.dtype == DType::f32 ? 4 : 2), t.dtype}, 0, 1);
}

// Calls f(wide element or -1, folded element) for every wide element of one folded position, flat
// index by flat index.
template <class F>
void each_of_position(const Shape& wide, const Shape& folded, const BlockShape& b,
                      std::int64_t position, F f) {
  const std::int64_t height = folded.begin()[1], width = folded.begin()[2];
  const std::int64_t n = folded.begin()[3], c = wide.begin()[3];
  const std::int64_t x = position % width, y = position / width % height,
                     t = position / width / height;
  const std::int64_t flats = c * b.time * b.space * b.space, group = flats / n;
  for (std::int64_t flat = 0; flat < flats; ++flat) {
    const std::int64_t fast = flat % b.space, slow = flat / b.space % b.space;
    const std::int64_t a = flat / (b.space * b.space) % b.time;
    const std::int64_t channel = flat / (b.space * b.space) / b.time;
    const std::int64_t p = b.columns_first ? fast : slow, q = b.columns_first ? slow : fast;
    const std::int64_t frame = t * b.time + a - b.lead;
    const std::int64_t at =
        frame < 0 ? -1
                  : ((frame * wide.begin()[1] + y * b.space + p) * wide.begin()[2] + x * b.space +
                     q) * c +
                        channel;
    f(at, position * n + flat / group, flat % group == group - 1);
  }
}

template <class F>
void each_position(const Shape& wide, const Shape& folded, ThreadPool& pool, F f) {
  const std::int64_t positions = folded.begin()[0] * folded.begin()[1] * folded.begin()[2];
  const std::int64_t each = wide.elements() / v::most(1, positions);
  v::each_row(pool, 0, positions, each, f);
}

}  // namespace

void space_to_depth(const SpaceToDepth& a, ThreadPool& pool) {
  each_position(a.wide.shape, a.folded.shape, pool, [&](std::int64_t position) {
    float sum = 0;
    each_of_position(a.wide.shape, a.folded.shape, a.block, position,
                     [&](std::int64_t from, std::int64_t to, bool last) {
                       if (from >= 0) sum += get(a.wide, from);
                       if (!last) return;
                       const float old = a.accumulate ? get(a.folded, to) : 0.0f;
                       put(a.folded, to, old + sum * a.scale);
                       sum = 0;
                     });
  });
}

void depth_to_space(const DepthToSpace& a, ThreadPool& pool) {
  each_position(a.wide.shape, a.folded.shape, pool, [&](std::int64_t position) {
    each_of_position(a.wide.shape, a.folded.shape, a.block, position,
                     [&](std::int64_t to, std::int64_t from, bool) {
                       if (to < 0) return;
                       const float old = a.accumulate ? get(a.wide, to) : 0.0f;
                       put(a.wide, to, old + get(a.folded, from) * a.scale);
                     });
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
