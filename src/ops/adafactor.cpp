#include "ops/adafactor.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/simd.h"
#include "ops/adafactor_cuda.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/kernels/ordered_sum_call.h"
#include "ops/kernels/update_rounding_call.h"
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

inline double first_rate(const Adafactor& a) {
  const double k = static_cast<double>(a.step);
  if (!a.options.relative_step) return a.learning_rate;
  return std::min(a.options.warmup_init ? 1e-6 * k : 1e-2, 1 / std::sqrt(k));
}

inline void run_on_gpu(const Adafactor& a, Stream stream) {
  const AdafactorOptions& o = a.options;
  cuda::adafactor({.p = a.p,
                   .row = a.row,
                   .column = a.column,
                   .v = a.v,
                   .g = a.g,
                   .grad_scale = a.grad_scale,
                   .workspace = a.workspace,
                   .keep = 1 - std::pow(static_cast<double>(a.step), o.decay_rate),
                   .eps_rows = o.eps_rows,
                   .eps_scale = o.eps_scale,
                   .clip_threshold = o.clip_threshold,
                   .weight_decay = o.weight_decay,
                   .scale_parameter = o.scale_parameter,
                   .rate = first_rate(a),
                   .rounding = cuda::rounding(a.rounding),
                   .scratch = sum_scratch(stream)},
                  stream.native);
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
      [&] { run_on_gpu(a, stream); });
}

void adafactor(ProgramBuilder& pb, const AdafactorBuffers& on, const AdafactorOptions& options,
               const RecordedRounding& rounding) {
  const Buffer carry = rounding.carry;
  const Buffer workspace = pb.workspace(adafactor_workspace(pb.shape(on.p)));
  const Buffer sums = sum_workspace(pb, on.p);
  Access access = {.reads = {on.p, on.row, on.column, on.v, on.g, on.grad_scale, carry},
                   .writes = {on.p, on.row, on.column, on.v, carry, workspace},
                   .scratch = sums};
  pb.emit("adafactor", std::move(access), [=](const Bindings& b) {
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
              stream_with(b, sums));
  });
}

}  // namespace ballast::ops
