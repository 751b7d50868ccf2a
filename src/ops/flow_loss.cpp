#include "ops/flow_loss.h"

#include "core/error.h"
#include "core/simd.h"
#include "ops/flow_loss_cuda.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/kernels/ordered_sum_call.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void flow_loss(const FlowLoss& a, ThreadPool& pool))
}

namespace {

bool is_activation(DType t) { return t == DType::f32 || t == DType::bf16; }

// The mask's dimensions are pred's last ones: planes repeat over the dimensions before them.
bool broadcasts(const Shape& mask, const Shape& pred) {
  if (mask.rank() == 0 || mask.rank() > pred.rank()) return false;
  for (int d = 1; d <= mask.rank(); ++d) {
    if (mask[-d] != pred[-d]) return false;
  }
  return true;
}

}  // namespace

void flow_loss(const FlowLoss& a, Stream stream) {
  check(is_activation(a.pred.dtype), "flow_loss: pred is {}", a.pred.dtype);
  check(a.target.dtype == DType::f32, "flow_loss: target is {}", a.target.dtype);
  check(a.loss.dtype == DType::f64 && a.loss.elements() == 1, "flow_loss: loss is {} {}",
        a.loss.dtype, a.loss.shape);
  check(a.target.shape == a.pred.shape, "flow_loss: target is {}, pred is {}", a.target.shape,
        a.pred.shape);
  check(a.pred.contiguous() && a.target.contiguous(), "flow_loss: pred and target are contiguous");
  check(a.rho.kind == LossKind::mse || a.rho.delta > 0, "flow_loss: delta is {}", a.rho.delta);
  if (a.mask) {
    check(
        a.mask.dtype == DType::f32 && a.mask.contiguous() && broadcasts(a.mask.shape, a.pred.shape),
        "flow_loss: the mask is {} {}, pred is {}", a.mask.dtype, a.mask.shape, a.pred.shape);
  }
  if (a.sample_weight) {
    check(a.sample_weight.dtype == DType::f32 && a.sample_weight.elements() == 1,
          "flow_loss: the sample's weight is {} {}", a.sample_weight.dtype, a.sample_weight.shape);
  }
  if (a.dpred) {
    check(is_activation(a.dpred.dtype), "flow_loss: dpred is {}", a.dpred.dtype);
    check(a.dpred.shape == a.pred.shape && a.dpred.contiguous(),
          "flow_loss: dpred is {}, pred is {}", a.dpred.shape, a.pred.shape);
  }
  on_device(
      a.pred.device, [&] { BALLAST_ISA_CALL(cpu, flow_loss, a, *stream.pool); },
      [&] {
        cuda::flow_loss({.pred = a.pred,
                         .target = a.target,
                         .mask = a.mask,
                         .sample_weight = a.sample_weight,
                         .huber = a.rho.kind != LossKind::mse,
                         .delta = a.rho.delta,
                         .weight = a.weight,
                         .over = a.rho.kind == LossKind::smooth_l1 ? a.rho.delta : 1,
                         .loss = a.loss,
                         .dpred = a.dpred,
                         .scratch = sum_scratch(stream)},
                        stream.native);
      });
}

void flow_loss(ProgramBuilder& pb, const FlowLossBuffers& buffers, const FlowLossOptions& options) {
  const Buffer workspace = sum_workspace(pb, buffers.pred);
  pb.emit(
      "flow_loss",
      {.reads = {buffers.pred, buffers.target, buffers.mask, buffers.sample_weight, buffers.loss},
       .writes = {buffers.loss, buffers.dpred},
       .scratch = workspace},
      [=](const Bindings& b) {
        flow_loss({.pred = b.in(buffers.pred),
                   .target = b.in(buffers.target),
                   .mask = b.in_if(buffers.mask),
                   .sample_weight = b.in_if(buffers.sample_weight),
                   .rho = options.rho,
                   .weight = options.weight,
                   .loss = b.out(buffers.loss),
                   .dpred = b.out_if(buffers.dpred)},
                  stream_with(b, workspace));
      });
}

}  // namespace ballast::ops
