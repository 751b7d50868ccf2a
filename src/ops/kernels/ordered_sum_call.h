#pragma once

#include "core/error.h"
#include "ops/kernels/ordered_sum_cuda.h"
#include "plan/bindings.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// Where an instruction's ordered sums wait on a GPU, for its writes; invalid where the instruction
// runs on the processors, which add as they go. at: one of its operands.
inline bool sums_on_gpu(const ProgramBuilder& pb, Buffer at) {
  return pb.backend().device == Device::cuda && pb.tier(at) == Tier::device;
}
inline Buffer sum_workspace(ProgramBuilder& pb, Buffer at) {
  return pb.workspace(sums_on_gpu(pb, at) ? cuda::kSumScratchBytes : 0);
}

// What sums over the rows of x [R, C] need there. A table [T, C] with a row for some rows each has
// no use for it: ops/kernels/column_sums.cuh.
inline std::int64_t column_bytes(const Shape& x, const Shape& sums) {
  const bool one = sums.rank() == 1 || sums[0] == 1;
  return one ? cuda::column_scratch_bytes(x[0], x[1]) : 0;
}
inline Buffer column_workspace(ProgramBuilder& pb, Buffer x, Buffer sums) {
  if (!sums || !sums_on_gpu(pb, x)) return {};
  return pb.shared_workspace(column_bytes(pb.shape(x), pb.shape(sums)));
}

// The instruction's stream with that memory, which need not be zero.
inline Stream stream_with(const Bindings& b, Buffer workspace) {
  Stream stream = b.stream();
  if (workspace) stream.scratch = b.out(workspace).data;
  return stream;
}

inline double* sum_scratch(Stream stream) {
  check(stream.scratch != nullptr, "an ordered sum on the GPU has no workspace");
  return reinterpret_cast<double*>(stream.scratch);
}
inline float* column_scratch(const ConstTensorView& x, const TensorView& sums, Stream stream) {
  check(!sums || column_bytes(x.shape, sums.shape) == 0 || stream.scratch != nullptr,
        "sums over rows on the GPU have no workspace");
  return reinterpret_cast<float*>(stream.scratch);
}

}  // namespace ballast::ops
