#include "core/to_size.h"
#include "ops/cross_entropy.h"
#include "ops/kernels/row_simd.h"

namespace ballast::ops::cpu::BALLAST_ISA {

namespace v = simd::BALLAST_ISA;
using v::f32v;

namespace {

void zero_row(const TensorView& dx, std::int64_t r, std::int64_t width) {
  const std::size_t size = dx.dtype == DType::f32 ? 4 : 2;
  std::memset(v::out_row(dx, r).data, 0, to_size(width) * size);
}

// The last vector's lanes behind the row's end are zeros: they must not be the largest, nor count.
f32v behind_end(f32v x, std::int64_t i, std::int64_t n) {
  for (std::int64_t k = n - i; k < v::kLanes; ++k) x[k] = -__builtin_inff();
  return x;
}

}  // namespace

void cross_entropy(const CrossEntropy& a, ThreadPool& pool) {
  const std::int64_t rows = a.x.shape.begin()[0], width = a.x.shape.begin()[1];
  const auto* labels = reinterpret_cast<const std::int32_t*>(a.labels.data);
  const float weight = *reinterpret_cast<const float*>(a.weight.data);
  auto* losses = reinterpret_cast<float*>(a.losses.data);
  v::each_row(pool, 0, rows, width, [&](std::int64_t r) {
    const std::int64_t label = labels[r];
    if (label < 0) {
      losses[r] = 0;
      if (a.dx.data) zero_row(a.dx, r, width);
      return;
    }
    const auto each = [&](auto&& f) {
      v::each_chunk(width, [&](std::int64_t c, std::int64_t n) {
        float tmp[v::kChunk];
        const float* x = v::fetch(v::in_row(a.x, r), c, n, tmp);
        v::unrolled(n, [&](std::int64_t i, int k) {
          const f32v raw = v::load(x + i);
          f(c + i, i + v::kLanes <= n ? raw : behind_end(raw, i, n), k);
        });
      });
    };
    f32v most = v::splat(-__builtin_inff());
    float own = 0;
    each([&](std::int64_t c, f32v x, int) {
      most = v::max(most, x);
      if (label >= c && label < c + v::kLanes) own = x[label - c];
    });
    const float m = v::reduce_max(most);
    v::RowSum sum;
    each([&](std::int64_t, f32v x, int k) { sum.part[k] += v::exp(x - m); });
    const float total = sum.total();
    losses[r] = m + __builtin_logf(total) - own;
    if (!a.dx.data) return;
    const float share = weight / total;
    v::each_chunk(width, [&](std::int64_t c, std::int64_t n) {
      float tx[v::kChunk], ty[v::kChunk];
      const float* x = v::fetch(v::in_row(a.x, r), c, n, tx);
      float* dx = v::target(v::out_row(a.dx, r), c, n, ty);
      for (std::int64_t i = 0; i < n; i += v::kLanes) {
        v::store(dx + i, v::exp(v::load(x + i) - m) * share);
      }
      if (label >= c && label < c + n) dx[label - c] -= weight;
      v::put(dx, v::out_row(a.dx, r), c, n);
    });
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
