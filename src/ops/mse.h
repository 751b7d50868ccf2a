#pragma once

#include "core/tensor.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// loss += weight * sum((pred - target)^2);  dpred = 2 * weight * (pred - target).
// With weight = 1/n this is the mean square error and its gradient. Differences are formed in f32;
// the sum is kept in f64, block by block in order (ops/ordered_sum.h): parts cut at multiples of
// kSumBlock elements give the same bits as the whole. dpred may be the memory of pred.
struct Mse {
  ConstTensorView pred;    // f32 or bf16, contiguous like the others
  ConstTensorView target;  // f32, as many elements
  double weight;
  TensorView loss;   // [1] f64, added to
  TensorView dpred;  // f32 or bf16; optional
};
void mse(const Mse& a, Stream stream);

void mse(ProgramBuilder& pb, Buffer pred, Buffer target, double weight, Buffer loss, Buffer dpred);

}  // namespace ballast::ops
