#include "plan/lane_threads.h"

#include <string_view>
#include <utility>

#include "core/start_thread.h"

namespace ballast {
namespace {

std::string_view purpose_of(Lane lane) {
  if (lane == Lane::disk) return "reading from disk";
  return lane == Lane::network ? "exchanging with other ranks" : "copying weights";
}

}  // namespace

LaneThreads::LaneThreads(const LaneSchedules& schedules, std::function<void()> begin, Work work)
    : begin_(std::move(begin)), work_(std::move(work)) {
  try {
    for (int l = 0; l < kLaneCount; ++l) {
      const auto lane = static_cast<Lane>(l);
      if (lane == Lane::compute || !schedules.used(lane)) continue;
      for (std::size_t worker = 0; worker < schedules[lane].workers; ++worker) {
        threads_.push_back(
            start_thread(purpose_of(lane), [this, lane, worker] { thread_main(lane, worker); }));
      }
    }
  } catch (...) {
    join();  // no destructor runs, and members must not go while a thread uses them
    throw;
  }
}

LaneThreads::~LaneThreads() { join(); }

void LaneThreads::join() {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
  }
  start_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void LaneThreads::run(int program) {
  {
    const std::lock_guard lock(mutex_);
    program_ = program;
    busy_ = threads_.size();
    ++generation_;
  }
  start_.notify_all();
  work_(Lane::compute, program, 0);
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return busy_ == 0; });
}

void LaneThreads::thread_main(Lane lane, std::size_t worker) {
  begin_();
  std::uint64_t seen = 0;
  for (;;) {
    int program = -1;
    {
      std::unique_lock lock(mutex_);
      start_.wait(lock, [&] { return quit_ || generation_ != seen; });
      if (quit_) return;
      seen = generation_;
      program = program_;
    }
    work_(lane, program, worker);
    const std::lock_guard lock(mutex_);
    --busy_;
    ended_.notify_all();
  }
}

}  // namespace ballast
