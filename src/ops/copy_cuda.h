#pragma once

#include "ops/cuda_view.h"

namespace ballast::ops::cuda {

// to = from, converted where the dtypes differ; ops/copy.h. from and to have one shape, any strides
// and any address, and either may be pinned host memory.
struct Copy {
  View from, to;
  bool through_engine = false;  // one side is host memory: equal rows are left to the copy engine
  bool saturating = false;
};
void copy(const Copy& a, void* stream);

}  // namespace ballast::ops::cuda
