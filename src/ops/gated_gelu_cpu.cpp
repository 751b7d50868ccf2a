#include "ops/gated_gelu.h"
#include "ops/gelu_simd.h"
#include "ops/kernels/row_simd.h"

namespace ballast::ops::cpu::BALLAST_ISA {

namespace v = simd::BALLAST_ISA;
using v::f32v;

void gated_gelu(const GatedGelu& x, ThreadPool& pool) {
  v::map_rows(x.a, x.b, x.z, pool, [](f32v a, f32v b) { return gelu_of(a) * b; });
}

// gelu'(a) as ops/gelu_cpu.cpp has it.
void gated_gelu_backward(const GatedGeluBackward& x, ThreadPool& pool) {
  const std::int64_t width = x.a.shape.begin()[1];
  v::each_row(pool, 0, x.a.shape.begin()[0], width, [&](std::int64_t r) {
    v::each_chunk(width, [&](std::int64_t c, std::int64_t n) {
      float ta[v::kChunk], tb[v::kChunk], tz[v::kChunk], tda[v::kChunk], tdb[v::kChunk];
      const float* a = v::fetch(v::in_row(x.a, r), c, n, ta);
      const float* b = v::fetch(v::in_row(x.b, r), c, n, tb);
      const float* dz = v::fetch(v::in_row(x.dz, r), c, n, tz);
      float* da = v::target(v::out_row(x.da, r), c, n, tda);
      float* db = v::target(v::out_row(x.db, r), c, n, tdb);
      for (std::int64_t i = 0; i < n; i += v::kLanes) {
        const f32v va = v::load(a + i), vb = v::load(b + i), vz = v::load(dz + i);
        const f32v e = exp_minus_2u(va);
        const f32v s = 1.0f / (e + 1.0f);
        const f32v slope = v::min(e, v::splat(__FLT_MAX__)) * s * s;
        v::store(da + i, vz * vb * (s + va * slope * (va * va * 0.134145f + 1.0f) * kTwoK));
        v::store(db + i, vz * (va / (e + 1.0f)));
      }
      v::put(da, v::out_row(x.da, r), c, n);
      v::put(db, v::out_row(x.db, r), c, n);
    });
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
