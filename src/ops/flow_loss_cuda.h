#pragma once

#include "ops/kernels/cuda_view.h"
#include "ops/kernels/ordered_sum_cuda.h"

namespace ballast::ops::cuda {

// ops/flow_loss.h: squares, or Huber's function of this delta; times weight and over `over`, which
// is delta for smooth-L1.
struct FlowLoss {
  View pred, target, mask, sample_weight;
  bool huber = false;
  double delta = 1, weight = 1, over = 1;
  View loss, dpred;
  double* scratch = nullptr;  // kSumScratchBytes
};
void flow_loss(const FlowLoss& a, void* stream);

}  // namespace ballast::ops::cuda
