#pragma once

#include <cstdint>

#include "core/tensor.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// rho of one difference e:
//   mse        e^2
//   huber      e^2 / 2 where |e| <= delta, else delta (|e| - delta / 2)
//   smooth_l1  e^2 / (2 delta) where |e| < delta, else |e| - delta / 2
enum class LossKind : std::uint8_t { mse, huber, smooth_l1 };

struct LossFunction {
  LossKind kind = LossKind::mse;
  double delta = 1;  // > 0; smooth-L1 calls it beta
};

// loss += w * sum(mask * rho(pred - target));  dpred = w * mask * rho'(pred - target),
// w = weight * sample_weight. With weight = 1/n this is the mean loss and its gradient.
// Differences and their factors are formed in f32; the sum is kept in f64, block by block in order
// (ops/kernels/ordered_sum.h): parts cut at multiples of kSumBlock elements give the same bits as
// the whole. dpred may be the memory of pred.
struct FlowLoss {
  ConstTensorView pred;                // f32 or bf16, contiguous like the others
  ConstTensorView target;              // f32, of pred's shape
  ConstTensorView mask = {};           // f32, optional: [F, H, W] for pred [..., F, H, W]
  ConstTensorView sample_weight = {};  // [1] f32, optional
  LossFunction rho = {};
  double weight = 1;
  TensorView loss;        // [1] f64, added to
  TensorView dpred = {};  // f32 or bf16; optional
};
void flow_loss(const FlowLoss& a, Stream stream);

// Recorded form: mask, sample_weight and dpred may be invalid.
struct FlowLossBuffers {
  Buffer pred, target, mask = {}, sample_weight = {}, loss, dpred = {};
};
struct FlowLossOptions {
  LossFunction rho = {};
  double weight = 1;
};
void flow_loss(ProgramBuilder& pb, const FlowLossBuffers& buffers, const FlowLossOptions& options);

}  // namespace ballast::ops
