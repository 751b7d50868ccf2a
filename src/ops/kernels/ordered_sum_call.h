#pragma once

#include "core/error.h"
#include "ops/kernels/on_device.h"
#include "ops/kernels/ordered_sum_cuda.h"
#include "plan/bindings.h"

namespace ballast::ops {

// For Instruction::prepare: what ordered sums need on the GPU exists before the first run.
inline void prepare_ordered_sum(const Bindings& b) {
  on_device(
      Device::cuda, [] {}, [&] { cuda::sum_scratch(*b.stream().queue); });
}

// ... and sums over rows.
inline void prepare_column_sums(const Bindings& b) {
  on_device(
      Device::cuda, [] {}, [&] { cuda::column_scratch(*b.stream().queue); });
}

}  // namespace ballast::ops
