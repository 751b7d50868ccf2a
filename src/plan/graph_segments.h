#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/to_size.h"
#include "memory/gpu.h"
#include "plan/memory_plan.h"
#include "plan/program.h"

namespace ballast {

// Consecutive instructions of the compute lane that do not synchronize with another lane. They are
// captured before a program's second run and launched with one call from then on: a launch takes
// the host 10 us, in which the GPU runs more than one instruction of few tokens. Instructions that
// differ from run to run are in no segment: those that ask for the step's values, and those that
// touch host memory, whose numbers they may read before they launch.
class GraphSegments {
 public:
  // In a program's instructions of the compute lane.
  struct Segment {
    std::uint32_t first = 0, count = 0;
    CudaGraph graph;
  };
  // Shorter ones are given out one by one: a recording has a price of its own.
  static constexpr std::uint32_t kShortest = 8;
  // Where a recording notes how far it is (GpuQueue::reach): it costs as much as a small launch.
  static constexpr std::uint32_t kMarkerInterval = 64;
  // Launches that are noted, of all programs, the first that come: they take memory
  // (plan/process_lines.cpp). A program of more has none: it is cut into so many because memory is
  // short, or has work for the GPU anyway.
  static constexpr std::uint32_t kMax = 16384;
  static std::uint64_t launches(const Program& program);  // of its compute lane

  GraphSegments(const ProgramSet& set, const MemoryPlan& plan);

  // Of instruction `position` of the compute lane, in the first run.
  void asks_for_step(int program, std::uint32_t position) { of(program).fixed[position] = false; }
  // enqueue(position) gives that instruction to the queue as in a run. Segments that cannot be
  // noted are left out.
  void capture(int program, GpuQueue& queue, const std::function<void(std::uint32_t)>& enqueue);
  std::uint32_t repeated(int program) const {
    std::uint32_t sum = 0;
    for (const Segment& s : programs_[to_size(program)].segments) sum += s.count;
    return sum;
  }
  bool captured(int program) const { return programs_[to_size(program)].captured; }
  // The one that begins with this instruction, or null.
  const Segment* at(int program, std::uint32_t position) const {
    const ProgramSegments& p = programs_[to_size(program)];
    const std::uint32_t s = p.captured ? p.begins[position] : kNone;
    return s == kNone ? nullptr : &p.segments[s];
  }

 private:
  static constexpr std::uint32_t kNone = ~0u;
  struct ProgramSegments {
    std::vector<bool> fixed;  // by position: nothing of it changes from run to run
    std::vector<std::uint32_t> launches;
    std::uint64_t all_launches = 0;
    std::vector<bool> waits, awaited;   // by position: for other lanes, by other lanes
    std::vector<std::uint32_t> begins;  // by position: index of the segment that begins there
    std::vector<Segment> segments;
    bool captured = false;
  };
  ProgramSegments& of(int program) { return programs_[to_size(program)]; }

  std::vector<ProgramSegments> programs_;
  std::uint32_t left_ = kMax;
};

}  // namespace ballast
