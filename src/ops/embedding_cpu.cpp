#include "ops/embedding.h"
#include "ops/kernels/row_simd.h"

namespace ballast::ops::cpu::BALLAST_ISA {

namespace v = simd::BALLAST_ISA;

void embedding(const Embedding& a, ThreadPool& pool) {
  const std::int64_t width = a.y.shape.begin()[1];
  v::each_row(pool, 0, a.y.shape.begin()[0], width, [&](std::int64_t r) {
    v::each_chunk(width, [&](std::int64_t c, std::int64_t n) {
      float from[v::kChunk], to[v::kChunk];
      const float* x = v::fetch(v::table_row(a.table, a.ids, r), c, n, from);
      float* y = v::target(v::out_row(a.y, r), c, n, to);
      for (std::int64_t i = 0; i < n; i += v::kLanes) v::store(y + i, v::load(x + i));
      v::put(y, v::out_row(a.y, r), c, n);
    });
  });
}

// Threads take columns, never rows: a row of the table may be added to several times.
void embedding_backward(const EmbeddingBackward& a, ThreadPool& pool) {
  const std::int64_t rows = a.dy.shape.begin()[0], width = a.dtable.shape.begin()[1];
  const auto* ids = reinterpret_cast<const std::int32_t*>(a.ids.data);
  pool.parallel((width + v::kPanel - 1) / v::kPanel, [&](std::int64_t panel, int) {
    const std::int64_t c = panel * v::kPanel, n = v::least(v::kPanel, width - c);
    for (std::int64_t r = 0; r < rows; ++r) {
      float tmp[v::kChunk];
      const float* dy = v::fetch(v::in_row(a.dy, r), c, n, tmp);
      float* to =
          reinterpret_cast<float*>(a.dtable.data) + ids[r] * a.dtable.strides.begin()[0] + c;
      for (std::int64_t i = 0; i < n; ++i) to[i] += dy[i];
    }
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
