#pragma once

#include "ops/kernels/cuda_view.h"

namespace ballast::ops::cuda {

// y += alpha * x; both [R, C], f32 or bf16, any row stride.
struct AddInto {
  View x, y;
  float alpha = 1;
};
void add_into(const AddInto& a, void* stream);

}  // namespace ballast::ops::cuda
