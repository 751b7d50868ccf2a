#include "ops/embedding.h"

#include "core/simd.h"
#include "ops/embedding_cuda.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/kernels/row_checks.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void embedding(const Embedding& a, ThreadPool& pool))
BALLAST_PER_ISA(void embedding_backward(const EmbeddingBackward& a, ThreadPool& pool))
}  // namespace cpu

void embedding(const Embedding& a, Stream stream) {
  check_rank_2("embedding: y", a.y);
  const std::int64_t rows = a.y.shape[0], width = a.y.shape[1];
  check_rows("embedding: y", a.y, rows, width);
  check(static_cast<bool>(a.table) && static_cast<bool>(a.ids), "embedding: no table or no ids");
  check_table("embedding: table", a.table, width);
  check_index("embedding: ids", a.ids, rows);
  on_device(
      a.y.device,
      [&] {
        check_index_range("embedding: ids", a.ids, a.table.shape[0]);
        BALLAST_ISA_CALL(cpu, embedding, a, *stream.pool);
      },
      [&] { cuda::embedding({.table = a.table, .ids = a.ids, .y = a.y}, stream.native); });
}

void embedding_backward(const EmbeddingBackward& a, Stream stream) {
  check_rank_2("embedding_backward: dtable", a.dtable);
  check_rank_2("embedding_backward: dy", a.dy);
  const std::int64_t rows = a.dy.shape[0], width = a.dtable.shape[1];
  check_rows("embedding_backward: dy", a.dy, rows, width);
  check_f32("embedding_backward: dtable", a.dtable, a.dtable.shape);
  check(static_cast<bool>(a.ids), "embedding_backward: no ids");
  check_index("embedding_backward: ids", a.ids, rows);
  on_device(
      a.dy.device,
      [&] {
        check_index_range("embedding_backward: ids", a.ids, a.dtable.shape[0]);
        BALLAST_ISA_CALL(cpu, embedding_backward, a, *stream.pool);
      },
      [&] {
        cuda::embedding_backward({.ids = a.ids, .dy = a.dy, .dtable = a.dtable}, stream.native);
      });
}

void embedding_into(ProgramBuilder& pb, Buffer table, Buffer ids, Buffer y) {
  pb.emit("embedding", {.reads = {table, ids}, .writes = {y}}, [=](const Bindings& b) {
    embedding({.table = b.in(table), .ids = b.in(ids), .y = b.out(y)}, b.stream());
  });
}

void embedding_backward(ProgramBuilder& pb, Buffer ids, Buffer dy, Buffer dtable) {
  pb.emit("embedding_backward", {.reads = {ids, dy, dtable}, .writes = {dtable}},
          [=](const Bindings& b) {
            embedding_backward({.ids = b.in(ids), .dy = b.in(dy), .dtable = b.out(dtable)},
                               b.stream());
          });
}

}  // namespace ballast::ops
