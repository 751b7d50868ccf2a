#include "ops/layer_norm.h"

#include "core/simd.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/kernels/ordered_sum_call.h"
#include "ops/kernels/row_checks.h"
#include "ops/layer_norm_cuda.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void layer_norm(const LayerNorm& a, ThreadPool& pool))
BALLAST_PER_ISA(void layer_norm_backward(const LayerNormBackward& a, ThreadPool& pool))
}  // namespace cpu

namespace {

// The number of rows of the tables that are there; they must agree.
std::int64_t table_rows(std::string_view what, std::initializer_list<ConstTensorView> tables,
                        std::int64_t width) {
  std::int64_t rows = 0;
  for (const ConstTensorView& t : tables) {
    if (!t) continue;
    check_table(what, t, width);
    check(rows == 0 || rows == t.shape[0], "{}: tables of {} and {} rows", what, rows, t.shape[0]);
    rows = t.shape[0];
  }
  return rows;
}

}  // namespace

void layer_norm(const LayerNorm& a, Stream stream) {
  check_rank_2("layer_norm: x", a.x);
  const std::int64_t rows = a.x.shape[0], width = a.x.shape[1];
  check_rows("layer_norm: x", a.x, rows, width);
  check_rows("layer_norm: y", a.y, rows, width);
  check_f32("layer_norm: stats", a.stats, {rows, 2});
  const std::int64_t tables = table_rows("layer_norm: a table", {a.mul, a.add}, width);
  check_index("layer_norm: index", a.index, rows);
  on_device(
      a.x.device,
      [&] {
        if (tables > 0) check_index_range("layer_norm: the index", a.index, tables);
        BALLAST_ISA_CALL(cpu, layer_norm, a, *stream.pool);
      },
      [&] {
        cuda::layer_norm({.x = a.x,
                          .mul = a.mul,
                          .add = a.add,
                          .index = a.index,
                          .one_plus = a.one_plus,
                          .y = a.y,
                          .stats = a.stats,
                          .eps = a.eps},
                         stream.native);
      });
}

void layer_norm_backward(const LayerNormBackward& a, Stream stream) {
  check_rank_2("layer_norm_backward: x", a.x);
  const std::int64_t rows = a.x.shape[0], width = a.x.shape[1];
  check_rows("layer_norm_backward: x", a.x, rows, width);
  check_f32("layer_norm_backward: stats", a.stats, {rows, 2});
  check_rows("layer_norm_backward: dy", a.dy, rows, width);
  check_rows("layer_norm_backward: dx", a.dx, rows, width);
  const std::int64_t tables =
      table_rows("layer_norm_backward: a table", {a.mul, a.dmul, a.dadd}, width);
  if (a.dmul) check_f32("layer_norm_backward: dmul", a.dmul, {tables, width});
  if (a.dadd) check_f32("layer_norm_backward: dadd", a.dadd, {tables, width});
  check_index("layer_norm_backward: index", a.index, rows);
  on_device(
      a.x.device,
      [&] {
        if (tables > 0) check_index_range("layer_norm_backward: the index", a.index, tables);
        BALLAST_ISA_CALL(cpu, layer_norm_backward, a, *stream.pool);
      },
      [&] {
        cuda::layer_norm_backward(
            {.x = a.x,
             .stats = a.stats,
             .mul = a.mul,
             .index = a.index,
             .one_plus = a.one_plus,
             .dy = a.dy,
             .dx = a.dx,
             .accumulate = a.accumulate,
             .dmul = a.dmul,
             .dadd = a.dadd,
             .scratch = column_scratch(a.x, a.dmul ? a.dmul : a.dadd, stream)},
            stream.native);
      });
}

LayerNormOut layer_norm(ProgramBuilder& pb, Buffer x, const NormTables& tables, float eps,
                        DType y_dtype) {
  const Buffer y = pb.temp("y", pb.shape(x), y_dtype);                         // [R, C]
  const Buffer stats = pb.temp("stats", {pb.shape(x).rows(), 2}, DType::f32);  // [R, 2]
  layer_norm_into(pb, x, tables, y, stats, eps);
  return {y, stats};
}

void layer_norm_into(ProgramBuilder& pb, Buffer x, const NormTables& t, Buffer y, Buffer stats,
                     float eps) {
  pb.emit("layer_norm", {.reads = {x, t.mul, t.add, t.index}, .writes = {y, stats}},
          [=](const Bindings& b) {
            layer_norm({.x = b.in(x),
                        .mul = as_table(b.in_if(t.mul)),
                        .add = as_table(b.in_if(t.add)),
                        .index = b.in_if(t.index),
                        .one_plus = t.one_plus,
                        .y = b.out(y),
                        .stats = b.out(stats),
                        .eps = eps},
                       b.stream());
          });
}

void layer_norm_backward(ProgramBuilder& pb, Buffer x, Buffer stats, const NormTables& t, Buffer dy,
                         Buffer dx, bool accumulate, const NormTableGrads& grads) {
  const Buffer workspace = column_workspace(pb, x, grads.dmul ? grads.dmul : grads.dadd);
  Access access = {.reads = {x, stats, t.mul, t.index, dy, grads.dmul, grads.dadd},
                   .writes = {dx, grads.dmul, grads.dadd},
                   .scratch = workspace};
  if (accumulate) access.reads.push_back(dx);
  pb.emit("layer_norm_backward", std::move(access), [=](const Bindings& b) {
    layer_norm_backward({.x = b.in(x),
                         .stats = b.in(stats),
                         .mul = as_table(b.in_if(t.mul)),
                         .index = b.in_if(t.index),
                         .one_plus = t.one_plus,
                         .dy = b.in(dy),
                         .dx = b.out(dx),
                         .accumulate = accumulate,
                         .dmul = as_table(b.out_if(grads.dmul)),
                         .dadd = as_table(b.out_if(grads.dadd))},
                        stream_with(b, workspace));
  });
}

}  // namespace ballast::ops
