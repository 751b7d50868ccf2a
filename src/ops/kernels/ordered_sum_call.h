#pragma once

#include "core/error.h"
#include "ops/kernels/on_device.h"
#include "ops/kernels/ordered_sum_cuda.h"
#include "plan/bindings.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// Where an instruction's ordered sums wait on a GPU, for its writes; invalid where the instruction
// runs on the processors, which add as they go. at: one of its operands.
inline Buffer sum_workspace(ProgramBuilder& pb, Buffer at) {
  const bool on_gpu = pb.backend().device == Device::cuda && pb.tier(at) == Tier::device;
  return pb.workspace(on_gpu ? cuda::kSumScratchBytes : 0);
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

// For Instruction::prepare: what sums over rows need on the GPU exists before the first run.
inline void prepare_column_sums(const Bindings& b) {
  on_device(
      Device::cuda, [] {}, [&] { cuda::column_scratch(*b.stream().queue); });
}

}  // namespace ballast::ops
