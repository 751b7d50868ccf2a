#include "ops/residual_norm.h"

#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/kernels/row_checks.h"
#include "ops/residual_norm_cuda.h"
#include "plan/bindings.h"

namespace ballast::ops {

void residual_norm(const ResidualNorm& a, Stream stream) {
  LayerNorm norm = a.norm;
  norm.x = a.residual.out;
  check(norm.y.data != a.residual.out.data || norm.y.elements() == 0,
        "residual_norm: the norm overwrites the sum");
  const auto one_after_the_other = [&] {
    gated_residual(a.residual, stream);
    layer_norm(norm, stream);
  };
  on_device(a.residual.x.device, one_after_the_other, [&] {
    const cuda::ResidualNorm k = {.x = a.residual.x,
                                  .y = a.residual.y,
                                  .gate = a.residual.gate,
                                  .gate_index = a.residual.index,
                                  .out = a.residual.out,
                                  .mul = norm.mul,
                                  .add = norm.add,
                                  .index = norm.index,
                                  .one_plus = norm.one_plus,
                                  .z = norm.y,
                                  .stats = norm.stats,
                                  .eps = norm.eps};
    if (!cuda::in_one_kernel(k)) return one_after_the_other();
    const GatedResidual& r = a.residual;
    const std::int64_t rows = r.x.shape[0], width = r.x.shape[1];
    check_rows("residual_norm: y", r.y, rows, width);
    check_rows("residual_norm: out", r.out, rows, width);
    check_rows("residual_norm: z", norm.y, rows, width);
    check_table("residual_norm: gate", r.gate, width);
    check_index("residual_norm: the gate's index", r.index, rows);
    check_table("residual_norm: mul", norm.mul, width);
    check_table("residual_norm: add", norm.add, width);
    check_index("residual_norm: index", norm.index, rows);
    check_f32("residual_norm: stats", norm.stats, {rows, 2});
    cuda::residual_norm(k, stream.native);
  });
}

LayerNormOut residual_norm(ProgramBuilder& pb, Buffer x, Buffer y, const Gate& gate, Buffer out,
                           const NormTables& tables, float eps, DType z_dtype) {
  return residual_norm_into(pb, x, y, gate, out, tables, eps,
                            pb.temp("z", pb.shape(x), z_dtype));  // [R, C]
}

LayerNormOut residual_norm_into(ProgramBuilder& pb, Buffer x, Buffer y, const Gate& gate,
                                Buffer out, const NormTables& tables, float eps, Buffer z) {
  const Buffer stats = pb.temp("stats", {pb.shape(x).rows(), 2}, DType::f32);  // [R, 2]
  pb.emit("residual_norm",
          {.reads = {x, y, gate.table, gate.index, tables.mul, tables.add, tables.index},
           .writes = {out, z, stats}},
          [=](const Bindings& b) {
            residual_norm({.residual = {.x = b.in(x),
                                        .y = b.in(y),
                                        .gate = as_table(b.in_if(gate.table)),
                                        .index = b.in_if(gate.index),
                                        .out = b.out(out)},
                           .norm = {.x = {},
                                    .mul = as_table(b.in_if(tables.mul)),
                                    .add = as_table(b.in_if(tables.add)),
                                    .index = b.in_if(tables.index),
                                    .one_plus = tables.one_plus,
                                    .y = b.out(z),
                                    .stats = b.out(stats),
                                    .eps = eps}},
                          b.stream());
          });
  return {z, stats};
}

}  // namespace ballast::ops
