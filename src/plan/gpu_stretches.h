#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "memory/gpu.h"
#include "plan/memory_plan.h"
#include "plan/program.h"

namespace ballast {

// Instructions of the compute lane that follow each other without a word to another lane, noted
// before a program's second run and given to the GPU by one call from then on: a launch takes the
// host 10 us, in which the GPU does more than one instruction of few tokens. What a run decides
// anew is part of none: instructions that ask for the step's values, and those that touch host
// memory, whose numbers they may read before they launch.
class GpuStretches {
 public:
  // In a program's instructions of the compute lane.
  struct Stretch {
    std::uint32_t first = 0, count = 0;
    GpuRecording recording;
  };
  // Shorter ones are given out one by one: a recording has a price of its own.
  static constexpr std::uint32_t kShortest = 8;
  // Where a recording notes how far it is (GpuQueue::reach): it costs as much as a small launch.
  static constexpr std::uint32_t kPlacesBetween = 64;
  // Launches that are noted, of all programs, the first that come: they take memory
  // (plan/process_lines.cpp). A program of more has none: it is cut into so many because memory is
  // short, or has work for the GPU anyway.
  static constexpr std::uint32_t kMost = 16384;
  static std::uint64_t launches(const Program& program);  // of its compute lane

  GpuStretches(const ProgramSet& set, const MemoryPlan& plan);

  // Of instruction `place` of the compute lane, in the first run.
  void asks_for_step(int program, std::uint32_t place) { of(program).fixed[place] = false; }
  // give(place) gives that instruction to the queue as in a run. Stretches that cannot be noted are
  // left out.
  void note(int program, GpuQueue& queue, const std::function<void(std::uint32_t)>& give);
  std::uint32_t repeated(int program) const {
    std::uint32_t sum = 0;
    for (const Stretch& s : programs_[static_cast<std::size_t>(program)].stretches) sum += s.count;
    return sum;
  }
  bool noted(int program) const { return programs_[static_cast<std::size_t>(program)].noted; }
  // The one that begins with this instruction, or null.
  const Stretch* at(int program, std::uint32_t place) const {
    const OfProgram& p = programs_[static_cast<std::size_t>(program)];
    const std::uint32_t s = p.noted ? p.begins[place] : kNone;
    return s == kNone ? nullptr : &p.stretches[s];
  }

 private:
  static constexpr std::uint32_t kNone = ~0u;
  struct OfProgram {
    std::vector<bool> fixed;  // by place: nothing of it changes from run to run
    std::vector<std::uint32_t> launches;
    std::uint64_t all_launches = 0;
    std::vector<bool> waits, awaited;   // by place: for other lanes, by other lanes
    std::vector<std::uint32_t> begins;  // by place: index of the stretch that begins there
    std::vector<Stretch> stretches;
    bool noted = false;
  };
  OfProgram& of(int program) { return programs_[static_cast<std::size_t>(program)]; }

  std::vector<OfProgram> programs_;
  std::uint32_t left_ = kMost;
};

}  // namespace ballast
