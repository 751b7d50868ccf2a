#include "ops/mse.h"

#include "core/error.h"
#include "core/simd.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void mse(const Mse& a, ThreadPool& pool))
}

void mse(const Mse& a, Stream stream) {
  check(a.pred.dtype == DType::f32 || a.pred.dtype == DType::bf16, "mse: pred is {}", a.pred.dtype);
  check(a.target.dtype == DType::f32, "mse: target is {}", a.target.dtype);
  check(a.loss.dtype == DType::f64 && a.loss.elements() == 1, "mse: loss is {} {}", a.loss.dtype,
        a.loss.shape);
  check(a.target.shape == a.pred.shape, "mse: target is {}, pred is {}", a.target.shape,
        a.pred.shape);
  check(a.pred.contiguous() && a.target.contiguous(), "mse: pred and target are contiguous");
  if (a.dpred) {
    check(a.dpred.dtype == DType::f32 || a.dpred.dtype == DType::bf16, "mse: dpred is {}",
          a.dpred.dtype);
    check(a.dpred.shape == a.pred.shape && a.dpred.contiguous(), "mse: dpred is {}, pred is {}",
          a.dpred.shape, a.pred.shape);
  }
  on_device(
      a.pred.device, [&] { BALLAST_ISA_CALL(cpu, mse, a, *stream.pool); },
      [&] { fail(ErrorCode::device, "mse has no CUDA kernel in this build"); });
}

void mse(ProgramBuilder& pb, Buffer pred, Buffer target, double weight, Buffer loss, Buffer dpred) {
  pb.emit("mse", {.reads = {pred, target, loss}, .writes = {loss, dpred}}, [=](const Bindings& b) {
    mse({.pred = b.in(pred),
         .target = b.in(target),
         .weight = weight,
         .loss = b.out(loss),
         .dpred = b.out_if(dpred)},
        b.stream());
  });
}

}  // namespace ballast::ops
