#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/to_size.h"
#include "memory/gpu.h"
#include "plan/graph_segments.h"
#include "plan/memory_plan.h"
#include "plan/program.h"

namespace ballast {

// Compute, upload and download lanes are queues of the GPU; disk and host lanes stay threads.
constexpr bool is_queue(Lane l) {
  return l == Lane::compute || l == Lane::upload || l == Lane::download;
}

// The queues of a run on the GPU and the marks by which lanes wait for each other's work. A queue
// gets its instructions ahead of time from the lane's thread; everything is made before the first
// run.
class GpuLanes {
 public:
  GpuLanes(const ProgramSet& set, const MemoryPlan& plan);

  // Between runs: whether the GPU's clock is read around each of compute's instructions.
  void time_instructions(bool on);

  Stream stream(Lane lane, ThreadPool* pool) { return queue(lane).stream(pool); }

  // Of every run: before the first and after the last instruction of a queue, then, when all lanes
  // have given out their work, until the GPU has done it.
  void begin(Lane lane);
  void end(Lane lane);
  void finish();

  // An instruction of `lane` goes on when `wait` holds; the other lane is a queue that was given
  // that instruction already. Work on the GPU waits there, anything else in the calling thread.
  void wait(Lane lane, int program, const Wait& wait, bool on_gpu);
  // Whether it holds already; of an instruction that nobody waits for this is not known.
  bool passed(int program, const Wait& wait) const;
  // What compute waits for between these two is its exposed stall.
  void begin_stall();
  void end_stall();
  // Instruction number `count` of the lane (from 1) was given to its queue.
  void given(Lane lane, int program, std::uint32_t count);
  // The queue's earlier work is done: for an instruction that the lane's own thread executes.
  void drain(Lane lane) { queue(lane).finish(); }

  // Of compute, which plays them where it is not timed instruction by instruction.
  GraphSegments& segments() { return segments_; }
  const GraphSegments& segments() const { return segments_; }
  const GraphSegments::Segment* segment_at(int program, std::uint32_t position) const {
    return instructions_.empty() ? segments_.at(program, position) : nullptr;
  }
  void launch(const GraphSegments::Segment& s) { queue(Lane::compute).launch(s.graph); }
  GpuQueue& compute() { return queue(Lane::compute); }

  // Compute is about to be given the instruction at this place, which is noted now and then, and
  // behind a recording, which notes its own; where the GPU has got to by such notes, also after a
  // failure.
  void mark_progress(std::uint32_t position, bool behind_graph) {
    if (behind_graph || position % kMarkerInterval == 0) queue(Lane::compute).reach(position);
  }
  std::optional<std::uint32_t> reached() const { return queues_[index(Lane::compute)].reached(); }
  static constexpr std::uint32_t kMarkerInterval = 16;

  void begin_instruction(Lane lane);
  void end_instruction(Lane lane);

  // Of the last run, in seconds by the GPU's clock.
  double elapsed(Lane lane) const;
  double stalled() const;
  double seconds_of(std::size_t instruction) const;  // of compute, in its order

  // Whether the GPU does this instruction, or (all its memory being the host's) the lane's thread.
  bool on_gpu(int program, std::uint32_t instruction) const {
    return on_gpu_[to_size(program)][instruction];
  }

 private:
  struct Ends {
    GpuMark begin{GpuMark::Kind::time}, end{GpuMark::Kind::time};
    bool used = false;
  };
  static constexpr std::size_t kQueues = 3;
  static std::size_t index(Lane l) { return to_size(l); }
  GpuQueue& queue(Lane l) { return queues_[index(l)]; }

  std::array<GpuQueue, kQueues> queues_;
  std::array<Ends, kQueues> runs_;
  std::array<std::vector<GpuMark>, kQueues> marks_;
  // By program, lane and instruction number: its mark, or kNone when nobody waits for it.
  static constexpr std::uint32_t kNone = ~0u;
  std::vector<std::array<std::vector<std::uint32_t>, kQueues>> mark_of_;
  std::vector<std::vector<bool>> on_gpu_;
  GraphSegments segments_;
  std::vector<Ends> stalls_;
  std::size_t stalls_used_ = 0;
  std::vector<Ends> instructions_;  // empty: not timed
  std::size_t max_instructions_ = 0;
  std::size_t instructions_used_ = 0;
};

}  // namespace ballast
