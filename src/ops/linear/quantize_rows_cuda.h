#pragma once

#include "ops/kernels/cuda_view.h"

namespace ballast::ops::cuda {

// ops/linear/quantize_rows.h. w may be pinned host memory and start at any byte. A row with NaN or
// infinity gets such a scale; nobody can be told while the queue is being filled.
struct QuantizeRows {
  View w;      // [N, K] f32 bf16 f16
  View q;      // [N, K] i8 f8_e4m3 f8_e5m2
  View scale;  // [N] or [1] f32
};
void quantize_rows(const QuantizeRows& a, void* stream);

}  // namespace ballast::ops::cuda
