#include "core/to_size.h"
#include "ops/kernels/row_simd.h"
#include "ops/softmax.h"

namespace ballast::ops::cpu::BALLAST_ISA {

namespace v = simd::BALLAST_ISA;
using v::f32v;

// Three looks at a row: its maximum, the sum, the result. The exponentials are made twice instead
// of being rounded to y's type in between.
void softmax(const Softmax& a, ThreadPool& pool) {
  const std::int64_t width = a.x.shape[1];
  v::each_row(pool, 0, a.x.shape[0], width, [&](std::int64_t row) {
    const v::InRow x = v::in_row(a.x, row);
    const v::OutRow y = v::out_row(a.y, row);
    float tx[v::kChunk], ty[v::kChunk];
    float highest = -__builtin_inff();
    v::each_chunk(width, [&](std::int64_t c, std::int64_t n) {
      const float* px = v::fetch(x, c, n, tx);
      for (std::int64_t i = 0; i < n; ++i) {
        const float e = px[i] * a.scale;
        highest = e > highest ? e : highest;
      }
    });
    v::RowSum sum;
    v::each_chunk(width, [&](std::int64_t c, std::int64_t n) {
      const float* px = v::fetch(x, c, n, tx);
      v::unrolled(v::padded(n), [&](std::int64_t i, int k) {
        f32v e = v::exp(v::load(px + i) * a.scale - highest);
        if (i + v::kLanes > n) {  // what pads the row adds nothing
          float lane[v::kLanes] = {};
          std::memcpy(lane, &e, to_size(n - i) * 4);
          e = v::load(lane);
        }
        sum.part[k] += e;
      });
    });
    const float factor = 1.0f / sum.total();
    v::each_chunk(width, [&](std::int64_t c, std::int64_t n) {
      const float* px = v::fetch(x, c, n, tx);
      float* py = v::target(y, c, n, ty);
      for (std::int64_t i = 0; i < n; i += v::kLanes) {
        v::store(py + i, v::exp(v::load(px + i) * a.scale - highest) * factor);
      }
      v::put(py, y, c, n);
    });
  });
}

void softmax_backward(const SoftmaxBackward& a, ThreadPool& pool) {
  const std::int64_t width = a.y.shape[1];
  v::each_row(pool, 0, a.y.shape[0], width, [&](std::int64_t row) {
    const v::InRow y = v::in_row(a.y, row), dy = v::in_row(a.dy, row);
    const v::OutRow dx = v::out_row(a.dx, row);
    float ty[v::kChunk], tdy[v::kChunk], tdx[v::kChunk];
    v::RowSum sum;
    v::each_chunk(width, [&](std::int64_t c, std::int64_t n) {
      const float* py = v::fetch(y, c, n, ty);
      const float* pdy = v::fetch(dy, c, n, tdy);
      v::unrolled(v::padded(n), [&](std::int64_t i, int k) {
        sum.part[k] += v::load(py + i) * v::load(pdy + i);
      });
    });
    const float along = sum.total();
    v::each_chunk(width, [&](std::int64_t c, std::int64_t n) {
      const float* py = v::fetch(y, c, n, ty);
      const float* pdy = v::fetch(dy, c, n, tdy);
      float* pdx = v::target(dx, c, n, tdx);
      for (std::int64_t i = 0; i < n; i += v::kLanes) {
        v::store(pdx + i, v::load(py + i) * (v::load(pdy + i) - along) * a.scale);
      }
      v::put(pdx, dx, c, n);
    });
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
