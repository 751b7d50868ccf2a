#pragma once

#include "ops/kernels/cuda_view.h"
#include "ops/relative_buckets.h"

namespace ballast::ops::cuda {

// The operands of ops/relative_bias.h, or their gradients.
struct RelativeBias {
  View table, bias;
  RelativeBuckets buckets;
  std::int64_t zero = 0;
};
void relative_bias(const RelativeBias& a, void* stream);           // writes bias
void relative_bias_backward(const RelativeBias& a, void* stream);  // adds to table

}  // namespace ballast::ops::cuda
