#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>

#include "core/to_size.h"
#include "plan/lane_schedule.h"

namespace ballast {

// How far each lane of a run is, for the threads of all of them: a lane takes what its schedule
// has, in order, and tells when it is done; others wait for that. Allocates nothing.
class LaneProgress {
 public:
  explicit LaneProgress(const LaneSchedules& schedules) : schedules_(schedules) {}

  void begin();  // of a run, while no thread works on another

  // Of the worker that takes the next part and waits for what it needs; not locked where a lane has
  // one hand.
  std::unique_lock<std::mutex> take_lock(Lane lane);
  std::uint32_t take(Lane lane) {
    return state(lane).taken.fetch_add(1, std::memory_order_relaxed);
  }
  // A lane with one hand goes on at `place`.
  void skip_to(Lane lane, std::uint32_t place) {
    state(lane).taken.store(place, std::memory_order_relaxed);
  }

  // What stands at `place` is done. One part counts as done when all before it are.
  void finish(Lane lane, int program, std::uint32_t place);

  // These return false when the run was stopped.
  bool wait_for(int program, const Wait& wait);
  bool wait_for_parts_before(Lane lane, int program, std::uint32_t place);
  // Whether it holds already.
  bool passed(int program, const Wait& wait) const {
    return state(wait.lane).done.load(std::memory_order_acquire) >= least(program, wait);
  }

  // By the first that fails; all others end when they wait or ask.
  void stop(std::exception_ptr error);
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }
  std::exception_ptr take_error();  // null: none; after the run

 private:
  struct State {
    std::mutex take_mutex;
    std::atomic<bool> worker_waits{false};  // for parts before its own
    std::atomic<std::uint32_t> taken{0}, done{0};
    std::array<bool, kReorderWindow> finished{};  // of those that are not in `done`, by place
  };

  State& state(Lane l) { return states_[to_size(l)]; }
  const State& state(Lane l) const { return states_[to_size(l)]; }
  std::uint32_t least(int program, const Wait& wait) const {
    return schedules_[wait.lane].done_after(program, wait.count);
  }
  bool wait_until(const std::atomic<std::uint32_t>& count, std::uint32_t least);

  const LaneSchedules& schedules_;
  std::array<State, kLaneCount> states_;
  std::mutex mutex_;
  std::condition_variable progress_;
  std::atomic<bool> stopped_{false};
  std::exception_ptr error_;
};

}  // namespace ballast
