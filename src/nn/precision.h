#pragma once

#include "core/device.h"
#include "core/dtype.h"

namespace ballast {

// What a model computes in.
struct Precision {
  DType activation = DType::f32;  // operands of matrix products and attention
  DType residual = DType::f32;    // the residual stream, and its gradient except in T5 (f32)
};
// What a backend computes in unless told otherwise: bf16 on a GPU, f32 on the CPU.
constexpr Precision precision_on(Device d) {
  return d == Device::cuda ? Precision{DType::bf16, DType::bf16} : Precision{};
}

}  // namespace ballast
