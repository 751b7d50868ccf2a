#include "plan/lane_progress.h"

#include <utility>

namespace ballast {

void LaneProgress::begin() {
  const std::lock_guard lock(mutex_);
  for (State& lane : states_) {
    lane.taken.store(0, std::memory_order_relaxed);
    lane.done.store(0, std::memory_order_relaxed);
    lane.finished = {};
  }
  stopped_.store(false);
  error_ = nullptr;
}

std::unique_lock<std::mutex> LaneProgress::take_lock(Lane lane) {
  std::unique_lock take_lock(state(lane).take_mutex, std::defer_lock);
  if (schedules_[lane].several()) take_lock.lock();
  return take_lock;
}

// Others wait for whole instructions, so nobody is woken for each of thousands of parts a second.
void LaneProgress::finish(Lane lane, int program, std::uint32_t place) {
  State& mine = state(lane);
  const auto p = to_size(program);
  const LaneSchedule& schedule = schedules_[lane];
  if (!schedule.several()) {
    if (!schedule.awaited[p][place]) return;
    const std::lock_guard lock(mutex_);
    mine.done.store(place + 1, std::memory_order_release);
  } else {
    const auto& parts = schedule.parts[p];
    const std::lock_guard lock(mutex_);
    mine.finished[place % kReorderWindow] = true;
    std::uint32_t done = mine.done.load(std::memory_order_relaxed);
    bool notify = mine.worker_waits;
    for (; mine.finished[done % kReorderWindow]; ++done) {
      mine.finished[done % kReorderWindow] = false;
      notify |= done + 1 == parts.size() || parts[done].instruction != parts[done + 1].instruction;
    }
    mine.done.store(done, std::memory_order_release);
    if (!notify) return;
  }
  progress_.notify_all();
}

bool LaneProgress::wait_for(int program, const Wait& wait) {
  return wait_until(state(wait.lane).done, least(program, wait));
}

bool LaneProgress::wait_for_parts_before(Lane lane, int program, std::uint32_t place) {
  State& mine = state(lane);
  const std::uint32_t least = schedules_[lane].after[to_size(program)][place];
  if (mine.done.load(std::memory_order_acquire) >= least) return true;
  mine.worker_waits = true;
  const bool goes_on = wait_until(mine.done, least);
  mine.worker_waits = false;
  return goes_on;
}

bool LaneProgress::wait_until(const std::atomic<std::uint32_t>& count, std::uint32_t least) {
  if (count.load(std::memory_order_acquire) >= least) return true;
  std::unique_lock lock(mutex_);
  progress_.wait(lock,
                 [&] { return stopped_.load() || count.load(std::memory_order_acquire) >= least; });
  return !stopped_.load();
}

void LaneProgress::stop(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    stopped_.store(true);
    if (!error_) error_ = std::move(error);
  }
  progress_.notify_all();
}

std::exception_ptr LaneProgress::take_error() {
  const std::lock_guard lock(mutex_);
  return std::exchange(error_, nullptr);
}

}  // namespace ballast
