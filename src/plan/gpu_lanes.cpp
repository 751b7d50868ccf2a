#include "plan/gpu_lanes.h"

#include <algorithm>

#include "core/error.h"

namespace ballast {
namespace {

bool touches_device(const ProgramSet& set, const Instruction& i) {
  const auto on_device = [&](Buffer b) { return set.spec(b).tier == Tier::device; };
  return std::ranges::any_of(i.reads, on_device) || std::ranges::any_of(i.writes, on_device);
}

}  // namespace

GpuLanes::GpuLanes(const ProgramSet& set, const MemoryPlan& plan) : segments_(set, plan) {
  static_assert(to_size(Lane::compute) < kQueues && to_size(Lane::upload) < kQueues &&
                to_size(Lane::download) < kQueues);
  std::array<std::size_t, kQueues> most{};
  std::size_t max_stalls = 0;
  for (std::size_t p = 0; p < set.programs.size(); ++p) {
    const auto& code = set.programs[p].instructions;
    auto& marks = mark_of_.emplace_back();
    auto& on_gpu = on_gpu_.emplace_back();
    for (const Instruction& i : code) {
      on_gpu.push_back(is_queue(i.lane) && touches_device(set, i));
      if (is_queue(i.lane)) marks[index(i.lane)].push_back(kNone);
    }
    std::array<std::size_t, kQueues> used{};
    std::size_t stalls = 0;
    for (std::size_t i = 0; i < code.size(); ++i) {
      const Waits& waits = plan.waits[p];
      if (code[i].lane == Lane::compute && waits.begin[i] < waits.begin[i + 1]) ++stalls;
      for (std::uint32_t w = waits.begin[i]; w < waits.begin[i + 1]; ++w) {
        const Wait& wait = waits.all[w];
        if (!is_queue(wait.lane)) continue;
        std::uint32_t& mark = marks[index(wait.lane)][wait.count - 1];
        if (mark == kNone) mark = static_cast<std::uint32_t>(used[index(wait.lane)]++);
      }
    }
    for (std::size_t l = 0; l < kQueues; ++l) most[l] = std::max(most[l], used[l]);
    max_stalls = std::max(max_stalls, stalls);
    max_instructions_ = std::max(max_instructions_, marks[index(Lane::compute)].size());
  }
  for (std::size_t l = 0; l < kQueues; ++l) marks_[l].resize(most[l]);
  stalls_.resize(max_stalls);
}

void GpuLanes::time_instructions(bool on) {
  instructions_.clear();
  if (on) instructions_.resize(max_instructions_);
}

void GpuLanes::begin(Lane lane) {
  if (lane == Lane::compute) {
    stalls_used_ = instructions_used_ = 0;
    queue(lane).clear_progress_marker();
  }
  queue(lane).record(runs_[index(lane)].begin);
}

void GpuLanes::end(Lane lane) {
  queue(lane).record(runs_[index(lane)].end);
  runs_[index(lane)].used = true;
}

void GpuLanes::finish() {
  for (GpuQueue& q : queues_) q.finish();
}

void GpuLanes::wait(Lane lane, int program, const Wait& wait, bool on_gpu) {
  const std::uint32_t m = mark_of_[to_size(program)][index(wait.lane)][wait.count - 1];
  const GpuMark& mark = marks_[index(wait.lane)][m];
  if (on_gpu) {
    queue(lane).wait(mark);
  } else {
    mark.wait();
  }
}

bool GpuLanes::passed(int program, const Wait& wait) const {
  const std::uint32_t m = mark_of_[to_size(program)][index(wait.lane)][wait.count - 1];
  return m != kNone && marks_[index(wait.lane)][m].passed();
}

void GpuLanes::begin_stall() { queue(Lane::compute).record(stalls_[stalls_used_].begin); }
void GpuLanes::end_stall() { queue(Lane::compute).record(stalls_[stalls_used_++].end); }

void GpuLanes::given(Lane lane, int program, std::uint32_t count) {
  const std::uint32_t m = mark_of_[to_size(program)][index(lane)][count - 1];
  if (m != kNone) queue(lane).record(marks_[index(lane)][m]);
}

void GpuLanes::begin_instruction(Lane lane) {
  if (lane != Lane::compute || instructions_.empty()) return;
  queue(lane).record(instructions_[instructions_used_].begin);
}
void GpuLanes::end_instruction(Lane lane) {
  if (lane != Lane::compute || instructions_.empty()) return;
  queue(lane).record(instructions_[instructions_used_++].end);
}

double GpuLanes::seconds_of(std::size_t instruction) const {
  const Ends& e = instructions_.at(instruction);
  return seconds_between(e.begin, e.end);
}

double GpuLanes::elapsed(Lane lane) const {
  const Ends& e = runs_[index(lane)];
  return e.used ? seconds_between(e.begin, e.end) : 0;
}

double GpuLanes::stalled() const {
  double sum = 0;
  for (std::size_t i = 0; i < stalls_used_; ++i) {
    sum += seconds_between(stalls_[i].begin, stalls_[i].end);
  }
  return sum;
}

}  // namespace ballast
