#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/tensor.h"
#include "memory/communicator.h"
#include "memory/scratch_file.h"
#include "plan/program.h"
#include "plan/ring_allocator.h"

namespace ballast {

// What changes from step to step; sizes never do.
struct StepValues {
  std::int64_t step = 0;  // counts from 1 for the optimizer
  std::uint64_t seed = 0;
  double learning_rate = 0;
  // Index of this run's first sample within the optimizer step: random numbers belong to samples,
  // however a step is split into runs (ops/kernels/random_site.h).
  std::int64_t first_sample = 0;
};

struct ArenaBases {
  std::byte* base[2] = {nullptr, nullptr};       // Tier::device, Tier::host
  const ScratchFile* scratch = nullptr;          // Tier::disk
  const RingAllocator* rings = nullptr;          // null: their buffers are where they were planned
  Communicator* const* communicators = nullptr;  // by number in ProgramSet::groups
};

// Where a buffer of the disk tier is.
struct StoredRange {
  const ScratchFile* file = nullptr;
  std::uint64_t offset = 0, bytes = 0;
};

// The highest byte of each arena, and of the scratch file, that was handed out.
struct HighWater {
  std::array<std::uint64_t, kTiers.size()> top{};

  void include(const HighWater& o) {
    for (std::size_t i = 0; i < top.size(); ++i) top[i] = std::max(top[i], o.top[i]);
  }
};

// The only door to memory: hands out exactly what the running instruction declared.
class Bindings {
 public:
  Bindings(const ProgramSet& set, const std::vector<std::uint64_t>& offsets,
           const ArenaBases& arenas, const Instruction& now, const StepValues& step, Stream stream,
           HighWater* high_water = nullptr,  // null: nobody asks
           bool* asked_for_step = nullptr,   // becomes true when the instruction does
           std::uint32_t part = 0)
      : set_(set),
        offsets_(offsets),
        arenas_(arenas),
        now_(now),
        step_(step),
        stream_(stream),
        high_water_(high_water),
        asked_for_step_(asked_for_step),
        part_(part) {}

  ConstTensorView in(Buffer b) const;
  TensorView out(Buffer b) const;
  // An empty view for an invalid handle: optional operands.
  ConstTensorView in_if(Buffer b) const { return b ? in(b) : ConstTensorView(); }
  TensorView out_if(Buffer b) const { return b ? out(b) : TensorView(); }
  // The same of buffers on disk, which have no address.
  StoredRange stored_in(Buffer b) const;
  StoredRange stored_out(Buffer b) const;

  const StepValues& step() const {
    if (asked_for_step_) *asked_for_step_ = true;
    return step_;
  }
  Stream stream() const { return stream_; }
  // The group that the running instruction declared (Cost::group).
  Communicator& group(int i) const;
  std::uint32_t part() const { return part_; }  // of Instruction::splits

 private:
  void check_reads(Buffer b) const;
  void check_writes(Buffer b) const;
  std::uint64_t place(Buffer b) const;
  TensorView bind(Buffer b) const;
  StoredRange stored(Buffer b) const;

  const ProgramSet& set_;
  const std::vector<std::uint64_t>& offsets_;
  const ArenaBases& arenas_;
  const Instruction& now_;
  const StepValues& step_;
  Stream stream_;
  HighWater* high_water_;
  bool* asked_for_step_;
  std::uint32_t part_;
};

}  // namespace ballast
