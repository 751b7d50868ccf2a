#pragma once

#include "core/tensor.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// Flow matching: x_t = (1 - t) x0 + t noise, target = noise - x0, for one sample.
// Contiguous f32 tensors of one shape; an output may be the memory of an input. 1 - t is formed in
// f64, products and sums in f32.
struct FlowNoise {
  ConstTensorView x0, noise;
  ConstTensorView t;  // [1] f32 or f64, in [0, 1]
  TensorView x_t;
  TensorView target;  // optional
};
void flow_noise(const FlowNoise& a, Stream stream);

struct FlowNoiseOut {
  Buffer x_t, target;
};
FlowNoiseOut flow_noise(ProgramBuilder& pb, Buffer x0, Buffer noise, Buffer t);

}  // namespace ballast::ops
