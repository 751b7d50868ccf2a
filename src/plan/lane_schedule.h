#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/to_size.h"
#include "plan/memory_plan.h"
#include "plan/program.h"

namespace ballast {

// The disk lane has as many workers as there are reads in flight, so that the disk's queue stays as
// deep while one of them ends. The other lanes have one.
inline constexpr std::size_t kMaxWorkers = 32;
inline constexpr std::uint32_t kReorderWindow = 64;  // how far one may be ahead of one that lasts

inline constexpr std::uint32_t kAllParts = ~0u;
struct InstructionPart {
  std::uint32_t instruction = 0, part = kAllParts;
};

// What one lane does, by program. Made before the first run; it never changes.
struct LaneSchedule {
  std::vector<std::vector<std::uint32_t>> code;  // indices of the program's instructions
  std::vector<std::vector<bool>> awaited;        // by place in code: by another lane
  std::size_t workers = 1;
  // With several workers: the parts of the instructions, which is what they take; how many there
  // are up to the end of each instruction; how many have to be done before each part begins.
  std::vector<std::vector<InstructionPart>> parts;
  std::vector<std::vector<std::uint32_t>> parts_until, after;

  bool several() const { return workers > 1; }
  std::size_t length(int program) const {
    const auto p = to_size(program);
    return several() ? parts[p].size() : code[p].size();
  }
  InstructionPart at(int program, std::uint32_t place) const {
    const auto p = to_size(program);
    return several() ? parts[p][place] : InstructionPart{code[p][place]};
  }
  // How many of them are done when the lane's first `instructions` are.
  std::uint32_t done_after(int program, std::uint32_t instructions) const {
    const auto& until = parts_until[to_size(program)];
    return until.empty() ? instructions : until[instructions - 1];
  }
};

class LaneSchedules {
 public:
  LaneSchedules(const ProgramSet& set, const MemoryPlan& plan, int disk_readers);

  const LaneSchedule& operator[](Lane l) const { return lanes_[to_size(l)]; }
  const std::vector<std::uint32_t>& code(Lane l, int program) const {
    return (*this)[l].code[to_size(program)];
  }
  bool used(Lane l) const;  // by any program

 private:
  std::array<LaneSchedule, kLaneCount> lanes_;
};

}  // namespace ballast
