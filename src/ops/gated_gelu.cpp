#include "ops/gated_gelu.h"

#include "core/simd.h"
#include "ops/gated_gelu_cuda.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/kernels/row_checks.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void gated_gelu(const GatedGelu& x, ThreadPool& pool))
BALLAST_PER_ISA(void gated_gelu_backward(const GatedGeluBackward& x, ThreadPool& pool))
}  // namespace cpu

void gated_gelu(const GatedGelu& x, Stream stream) {
  check_rank_2("gated_gelu: a", x.a);
  const std::int64_t rows = x.a.shape[0], width = x.a.shape[1];
  check_rows("gated_gelu: a", x.a, rows, width);
  check_rows("gated_gelu: b", x.b, rows, width);
  check_rows("gated_gelu: z", x.z, rows, width);
  on_device(
      x.a.device, [&] { BALLAST_ISA_CALL(cpu, gated_gelu, x, *stream.pool); },
      [&] { cuda::gated_gelu({.a = x.a, .b = x.b, .z = x.z}, stream.native); });
}

void gated_gelu_backward(const GatedGeluBackward& x, Stream stream) {
  check_rank_2("gated_gelu_backward: a", x.a);
  const std::int64_t rows = x.a.shape[0], width = x.a.shape[1];
  check_rows("gated_gelu_backward: a", x.a, rows, width);
  check_rows("gated_gelu_backward: b", x.b, rows, width);
  check_rows("gated_gelu_backward: dz", x.dz, rows, width);
  check_rows("gated_gelu_backward: da", x.da, rows, width);
  check_rows("gated_gelu_backward: db", x.db, rows, width);
  on_device(
      x.a.device, [&] { BALLAST_ISA_CALL(cpu, gated_gelu_backward, x, *stream.pool); },
      [&] {
        cuda::gated_gelu_backward({.a = x.a, .b = x.b, .dz = x.dz, .da = x.da, .db = x.db},
                                  stream.native);
      });
}

void gated_gelu_into(ProgramBuilder& pb, Buffer a, Buffer b, Buffer z) {
  pb.emit("gated_gelu", {.reads = {a, b}, .writes = {z}}, [=](const Bindings& m) {
    gated_gelu({.a = m.in(a), .b = m.in(b), .z = m.out(z)}, m.stream());
  });
}

void gated_gelu_backward_into(ProgramBuilder& pb, Buffer a, Buffer b, Buffer dz, Buffer da,
                              Buffer db) {
  pb.emit("gated_gelu_backward", {.reads = {a, b, dz}, .writes = {da, db}}, [=](const Bindings& m) {
    gated_gelu_backward(
        {.a = m.in(a), .b = m.in(b), .dz = m.in(dz), .da = m.out(da), .db = m.out(db)}, m.stream());
  });
}

}  // namespace ballast::ops
