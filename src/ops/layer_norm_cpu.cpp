#include "ops/kernels/row_simd.h"
#include "ops/layer_norm.h"

namespace ballast::ops::cpu::BALLAST_ISA {

namespace v = simd::BALLAST_ISA;
using v::f32v;

namespace {

struct Stats {
  float mean, rstd;
};

Stats stats_of_row(v::InRow x, std::int64_t width, float eps) {
  const float inverse_width = 1.0f / static_cast<float>(width);
  float tx[v::kChunk];
  v::RowSum sum;
  v::each_chunk(width, [&](std::int64_t c, std::int64_t n) {
    const float* px = v::fetch(x, c, n, tx);
    v::unrolled(v::padded(n), [&](std::int64_t i, int k) { sum.part[k] += v::load(px + i); });
  });
  const float mean = sum.total() * inverse_width;

  v::RowSum squares;
  v::each_chunk(width, [&](std::int64_t c, std::int64_t n) {
    const float* px = v::fetch(x, c, n, tx);
    const std::int64_t whole = n / v::kLanes * v::kLanes;
    v::unrolled(whole, [&](std::int64_t i, int k) {
      const f32v d = v::load(px + i) - mean;
      squares.part[k] += d * d;
    });
    if (whole < n) {  // the zeros that pad the row are not at distance 0 from the mean
      float td[v::kLanes];
      v::store(td, v::load(px + whole) - mean);
      const f32v d = v::load_partial(td, n - whole);
      squares.part[0] += d * d;
    }
  });
  return {mean, 1.0f / __builtin_sqrtf(squares.total() * inverse_width + eps)};
}

// f = base + mul; an absent mul reads as zeros.
float base_of(const ConstTensorView& mul, bool one_plus) {
  return one_plus || !mul.data ? 1.0f : 0.0f;
}

}  // namespace

void layer_norm(const LayerNorm& a, ThreadPool& pool) {
  const std::int64_t width = a.x.shape[1], stats_stride = a.stats.strides[0];
  const float base = base_of(a.mul, a.one_plus);
  auto* stats = reinterpret_cast<float*>(a.stats.data);
  v::each_row(pool, 0, a.x.shape[0], width, [&](std::int64_t row) {
    const v::InRow x = v::in_row(a.x, row);
    const v::InRow mul = v::table_row(a.mul, a.index, row);
    const v::InRow add = v::table_row(a.add, a.index, row);
    const v::OutRow y = v::out_row(a.y, row);
    const Stats s = stats_of_row(x, width, a.eps);
    stats[row * stats_stride] = s.mean;
    stats[row * stats_stride + 1] = s.rstd;
    float tx[v::kChunk], tmul[v::kChunk], tadd[v::kChunk], ty[v::kChunk];
    v::each_chunk(width, [&](std::int64_t c, std::int64_t n) {
      const float* px = v::fetch(x, c, n, tx);
      const float* pmul = v::fetch(mul, c, n, tmul);
      const float* padd = v::fetch(add, c, n, tadd);
      float* py = v::target(y, c, n, ty);
      for (std::int64_t i = 0; i < n; i += v::kLanes) {
        const f32v xhat = (v::load(px + i) - s.mean) * s.rstd;
        v::store(py + i, xhat * (v::load(pmul + i) + base) + v::load(padd + i));
      }
      v::put(py, y, c, n);
    });
  });
}

namespace {

void dx_of_row(const LayerNormBackward& a, std::int64_t row, Stats s) {
  const std::int64_t width = a.x.shape[1];
  const float base = base_of(a.mul, a.one_plus);
  const v::InRow x = v::in_row(a.x, row), dy = v::in_row(a.dy, row);
  const v::InRow mul = v::table_row(a.mul, a.index, row);
  const v::OutRow dx = v::out_row(a.dx, row);
  const v::InRow old = a.accumulate ? v::InRow{dx.data, dx.dtype} : v::InRow{};
  float tx[v::kChunk], tdy[v::kChunk], tmul[v::kChunk], told[v::kChunk], tdx[v::kChunk];

  v::RowSum g_sum, gx_sum;  // of g and g xhat
  v::each_chunk(width, [&](std::int64_t c, std::int64_t n) {
    const float* px = v::fetch(x, c, n, tx);
    const float* pdy = v::fetch(dy, c, n, tdy);
    const float* pmul = v::fetch(mul, c, n, tmul);
    v::unrolled(v::padded(n), [&](std::int64_t i, int k) {
      const f32v g = v::load(pdy + i) * (v::load(pmul + i) + base);
      g_sum.part[k] += g;
      gx_sum.part[k] += g * ((v::load(px + i) - s.mean) * s.rstd);
    });
  });
  const float inverse_width = 1.0f / static_cast<float>(width);
  const float g_mean = g_sum.total() * inverse_width, gx_mean = gx_sum.total() * inverse_width;

  v::each_chunk(width, [&](std::int64_t c, std::int64_t n) {
    const float* px = v::fetch(x, c, n, tx);
    const float* pdy = v::fetch(dy, c, n, tdy);
    const float* pmul = v::fetch(mul, c, n, tmul);
    const float* pold = v::fetch(old, c, n, told);
    float* pdx = v::target(dx, c, n, tdx);
    for (std::int64_t i = 0; i < n; i += v::kLanes) {
      const f32v g = v::load(pdy + i) * (v::load(pmul + i) + base);
      const f32v xhat = (v::load(px + i) - s.mean) * s.rstd;
      v::store(pdx + i, v::load(pold + i) + (g - g_mean - xhat * gx_mean) * s.rstd);
    }
    v::put(pdx, dx, c, n);
  });
}

}  // namespace

// A quantum's table gradients come before its dx, which may overwrite dy; all of them read it while
// it is in the cache.
void layer_norm_backward(const LayerNormBackward& a, ThreadPool& pool) {
  const std::int64_t rows = a.x.shape[0], width = a.x.shape[1];
  const std::int64_t stats_stride = a.stats.strides[0];
  const auto* stats = reinterpret_cast<const float*>(a.stats.data);
  const auto stats_at = [&](std::int64_t row) -> Stats {
    return {stats[row * stats_stride], stats[row * stats_stride + 1]};
  };
  const auto dx_of_rows = [&](std::int64_t begin, std::int64_t end) {
    v::each_row(pool, begin, end, width,
                [&](std::int64_t row) { dx_of_row(a, row, stats_at(row)); });
  };
  if (!a.dmul.data && !a.dadd.data) return dx_of_rows(0, rows);

  const auto mul_term = [&](std::int64_t row, std::int64_t c, std::int64_t n, float* partial) {
    float tx[v::kPanel], tdy[v::kPanel];
    const float* px = v::fetch(v::in_row(a.x, row), c, n, tx);
    const float* pdy = v::fetch(v::in_row(a.dy, row), c, n, tdy);
    const Stats s = stats_at(row);
    for (std::int64_t i = 0; i < n; i += v::kLanes) {
      const f32v xhat = (v::load(px + i) - s.mean) * s.rstd;
      v::store(partial + i, v::load(partial + i) + v::load(pdy + i) * xhat);
    }
  };
  const auto add_term = [&](std::int64_t row, std::int64_t c, std::int64_t n, float* partial) {
    float tdy[v::kPanel];
    const float* pdy = v::fetch(v::in_row(a.dy, row), c, n, tdy);
    for (std::int64_t i = 0; i < n; i += v::kLanes) {
      v::store(partial + i, v::load(partial + i) + v::load(pdy + i));
    }
  };
  v::each_quantum(rows, [&](std::int64_t begin, std::int64_t end) {
    if (a.dmul.data) v::add_column_sums(pool, begin, end, a.index, a.dmul, mul_term);
    if (a.dadd.data) v::add_column_sums(pool, begin, end, a.index, a.dadd, add_term);
    dx_of_rows(begin, end);
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
