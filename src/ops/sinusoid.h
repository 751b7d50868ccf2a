#pragma once

#include "core/tensor.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// The time embedding's input: y[t, i] = cos(t f_i), y[t, Q/2 + i] = sin(t f_i) with
// f_i = 10000^(-i / (Q/2)), i = 0 ... Q/2-1. Cosines come first. Angles are formed in f64 (at t
// near 1000 an f32 angle is already wrong in the fourth digit) and the results rounded to f32.
struct Sinusoid {
  ConstTensorView t;  // [T] f64
  TensorView y;       // [T, Q] f32, Q even
};
void sinusoid(const Sinusoid& a, Stream stream);

Buffer sinusoid(ProgramBuilder& pb, Buffer t, std::int64_t width);  // [T, width] f32

}  // namespace ballast::ops
