#pragma once

#include "ops/kernels/cuda_view.h"

namespace ballast::ops::cuda {

// to = from, converted where the dtypes differ; ops/copy.h. from and to have one shape, any strides
// and any address, and either may be pinned host memory.
struct Copy {
  View from, to;
  bool through_engine = false;  // one side is host memory: equal rows are left to the copy engine
  bool saturating = false;
};
void copy(const Copy& a, void* stream);

// Equal rows, in bytes. Those of a few bytes go faster through a kernel, also over the link.
struct EngineRows {
  std::int64_t width = 0, pitch = 0;
};
inline bool engine_takes(const EngineRows& r) {
  return r.width >= 64 && r.pitch >= r.width && r.pitch < std::int64_t{1} << 31;
}

}  // namespace ballast::ops::cuda
