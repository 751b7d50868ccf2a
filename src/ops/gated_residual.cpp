#include "ops/gated_residual.h"

#include "core/simd.h"
#include "ops/gated_residual_cuda.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/kernels/ordered_sum_call.h"
#include "ops/kernels/row_checks.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void gated_residual(const GatedResidual& a, ThreadPool& pool))
BALLAST_PER_ISA(void gated_residual_backward(const GatedResidualBackward& a, ThreadPool& pool))
}  // namespace cpu

void gated_residual(const GatedResidual& a, Stream stream) {
  check_rank_2("gated_residual: x", a.x);
  const std::int64_t rows = a.x.shape[0], width = a.x.shape[1];
  check_rows("gated_residual: x", a.x, rows, width);
  check_rows("gated_residual: y", a.y, rows, width);
  check_rows("gated_residual: out", a.out, rows, width);
  check_table("gated_residual: gate", a.gate, width);
  check_index("gated_residual: index", a.index, rows);
  on_device(
      a.x.device,
      [&] {
        if (a.gate) check_index_range("gated_residual: the index", a.index, a.gate.shape[0]);
        BALLAST_ISA_CALL(cpu, gated_residual, a, *stream.pool);
      },
      [&] {
        cuda::gated_residual({.x = a.x, .y = a.y, .gate = a.gate, .index = a.index, .out = a.out},
                             stream.native);
      });
}

void gated_residual_backward(const GatedResidualBackward& a, Stream stream) {
  check_rank_2("gated_residual_backward: dout", a.dout);
  const std::int64_t rows = a.dout.shape[0], width = a.dout.shape[1];
  check_rows("gated_residual_backward: dout", a.dout, rows, width);
  check_rows("gated_residual_backward: dy", a.dy, rows, width);
  check_table("gated_residual_backward: gate", a.gate, width);
  check_index("gated_residual_backward: index", a.index, rows);
  if (a.dgate) {
    check(static_cast<bool>(a.gate), "gated_residual_backward: dgate without a gate");
    check_rows("gated_residual_backward: y", a.y, rows, width);
    check_f32("gated_residual_backward: dgate", a.dgate, a.gate.shape);
  }
  on_device(
      a.dout.device,
      [&] {
        if (a.gate) {
          check_index_range("gated_residual_backward: the index", a.index, a.gate.shape[0]);
        }
        BALLAST_ISA_CALL(cpu, gated_residual_backward, a, *stream.pool);
      },
      [&] {
        cuda::gated_residual_backward({.dout = a.dout,
                                       .gate = a.gate,
                                       .index = a.index,
                                       .dy = a.dy,
                                       .y = a.y,
                                       .dgate = a.dgate,
                                       .scratch = column_scratch(a.dout, a.dgate, stream)},
                                      stream.native);
      });
}

void gated_residual(ProgramBuilder& pb, Buffer x, Buffer y, const Gate& gate, Buffer out) {
  pb.emit("gated_residual", {.reads = {x, y, gate.table, gate.index}, .writes = {out}},
          [=](const Bindings& b) {
            gated_residual({.x = b.in(x),
                            .y = b.in(y),
                            .gate = as_table(b.in_if(gate.table)),
                            .index = b.in_if(gate.index),
                            .out = b.out(out)},
                           b.stream());
          });
}

void gated_residual_backward(ProgramBuilder& pb, Buffer dout, const Gate& gate, Buffer dy, Buffer y,
                             Buffer dgate) {
  const Buffer workspace = column_workspace(pb, dout, dgate);
  const Access access = {.reads = {dout, gate.table, gate.index, y, dgate},
                         .writes = {dy, dgate},
                         .scratch = workspace};
  pb.emit("gated_residual_backward", access, [=](const Bindings& b) {
    gated_residual_backward({.dout = b.in(dout),
                             .gate = as_table(b.in_if(gate.table)),
                             .index = b.in_if(gate.index),
                             .dy = b.out(dy),
                             .y = b.in_if(y),
                             .dgate = as_table(b.out_if(dgate))},
                            stream_with(b, workspace));
  });
}

}  // namespace ballast::ops
