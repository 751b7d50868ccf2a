#include "ops/gated_residual.h"
#include "ops/kernels/row_simd.h"

namespace ballast::ops::cpu::BALLAST_ISA {

namespace v = simd::BALLAST_ISA;
using v::f32v;

namespace {

// The gate is base + table row; an absent table reads as zeros.
float base_of(const ConstTensorView& gate) { return gate.data ? 0.0f : 1.0f; }

}  // namespace

void gated_residual(const GatedResidual& a, ThreadPool& pool) {
  const std::int64_t width = a.x.shape[1];
  const float base = base_of(a.gate);
  v::each_row(pool, 0, a.x.shape[0], width, [&](std::int64_t row) {
    const v::InRow x = v::in_row(a.x, row), y = v::in_row(a.y, row);
    const v::InRow gate = v::table_row(a.gate, a.index, row);
    const v::OutRow out = v::out_row(a.out, row);
    float tx[v::kChunk], ty[v::kChunk], tgate[v::kChunk], tout[v::kChunk];
    v::each_chunk(width, [&](std::int64_t c, std::int64_t n) {
      const float* px = v::fetch(x, c, n, tx);
      const float* py = v::fetch(y, c, n, ty);
      const float* pgate = v::fetch(gate, c, n, tgate);
      float* pout = v::target(out, c, n, tout);
      for (std::int64_t i = 0; i < n; i += v::kLanes) {
        const f32v factor = v::load(pgate + i) + base;
        v::store(pout + i, v::load(px + i) + v::load(py + i) * factor);
      }
      v::put(pout, out, c, n);
    });
  });
}

// A quantum's dgate comes before its dy, which may overwrite dout or y.
void gated_residual_backward(const GatedResidualBackward& a, ThreadPool& pool) {
  const std::int64_t rows = a.dout.shape[0], width = a.dout.shape[1];
  const float base = base_of(a.gate);
  const auto dy_of_rows = [&](std::int64_t begin, std::int64_t end) {
    v::each_row(pool, begin, end, width, [&](std::int64_t row) {
      const v::InRow dout = v::in_row(a.dout, row);
      const v::InRow gate = v::table_row(a.gate, a.index, row);
      const v::OutRow dy = v::out_row(a.dy, row);
      float tdout[v::kChunk], tgate[v::kChunk], tdy[v::kChunk];
      v::each_chunk(width, [&](std::int64_t c, std::int64_t n) {
        const float* pdout = v::fetch(dout, c, n, tdout);
        const float* pgate = v::fetch(gate, c, n, tgate);
        float* pdy = v::target(dy, c, n, tdy);
        for (std::int64_t i = 0; i < n; i += v::kLanes) {
          v::store(pdy + i, v::load(pdout + i) * (v::load(pgate + i) + base));
        }
        v::put(pdy, dy, c, n);
      });
    });
  };
  if (!a.dgate.data) return dy_of_rows(0, rows);

  const auto term = [&](std::int64_t row, std::int64_t c, std::int64_t n, float* partial) {
    float tdout[v::kPanel], ty[v::kPanel];
    const float* pdout = v::fetch(v::in_row(a.dout, row), c, n, tdout);
    const float* py = v::fetch(v::in_row(a.y, row), c, n, ty);
    for (std::int64_t i = 0; i < n; i += v::kLanes) {
      v::store(partial + i, v::load(partial + i) + v::load(pdout + i) * v::load(py + i));
    }
  };
  v::each_quantum(rows, [&](std::int64_t begin, std::int64_t end) {
    v::add_column_sums(pool, begin, end, a.index, a.dgate, term);
    dy_of_rows(begin, end);
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
