#include "ops/adafactor.h"

#include "core/error.h"
#include "core/simd.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void adafactor(const Adafactor& a, ThreadPool& pool))
}

namespace {

void check_state(const char* name, const ConstTensorView& t, std::int64_t elements) {
  check((t || elements == 0) && t.dtype == DType::f32 && t.elements() == elements && t.contiguous(),
        "adafactor: {} is {} {}, expected {} elements of f32", name, t.dtype, t.shape, elements);
}

std::int64_t stack(const Shape& s) {  // how many matrices
  std::int64_t n = 1;
  for (int i = 0; i + 2 < s.rank(); ++i) n *= s[i];
  return n;
}

}  // namespace

// A sum per row and one per matrix.
std::int64_t adafactor_workspace(const Shape& p) {
  return p.rank() < 2 ? 0 : 8 * (p.rows() + stack(p));
}

void adafactor(const Adafactor& a, Stream stream) {
  check_parameter("adafactor", a.p, a.rounding);
  check_beside_parameter("adafactor", "g", a.g, a.p);
  check_grad_scale("adafactor", a.grad_scale);
  check(a.step >= 1, "adafactor: steps count from 1, this is step {}", a.step);
  if (a.p.shape.rank() >= 2) {
    check_state("row", a.row, a.p.shape.rows());
    check_state("column", a.column, stack(a.p.shape) * a.p.shape.back());
    check(static_cast<std::int64_t>(a.workspace.bytes()) >= adafactor_workspace(a.p.shape),
          "adafactor: the workspace has {} of {} bytes", a.workspace.bytes(),
          adafactor_workspace(a.p.shape));
  } else {
    check_state("v", a.v, a.p.elements());
  }
  if (a.p.elements() == 0) return;
  on_device(
      a.p.device, [&] { BALLAST_ISA_CALL(cpu, adafactor, a, *stream.pool); },
      [&] { fail(ErrorCode::device, "adafactor has no CUDA kernel in this build"); });
}

void adafactor(ProgramBuilder& pb, const AdafactorBuffers& on, const AdafactorOptions& options,
               const RecordedRounding& rounding) {
  const Buffer carry = rounding.carry;
  const Buffer workspace = pb.workspace(adafactor_workspace(pb.shape(on.p)));
  pb.emit("adafactor",
          {.reads = {on.p, on.row, on.column, on.v, on.g, on.grad_scale, carry},
           .writes = {on.p, on.row, on.column, on.v, carry, workspace}},
          [=](const Bindings& b) {
            adafactor({.p = b.out(on.p),
                       .row = b.out_if(on.row),
                       .column = b.out_if(on.column),
                       .v = b.out_if(on.v),
                       .g = b.in(on.g),
                       .grad_scale = b.in_if(on.grad_scale),
                       .workspace = b.out_if(workspace),
                       .options = options,
                       .step = b.step().step,
                       .learning_rate = b.step().learning_rate,
                       .rounding = bind(b, rounding)},
                      b.stream());
          });
}

}  // namespace ballast::ops
