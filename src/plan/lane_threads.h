#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "plan/lane_schedule.h"

namespace ballast {

// One thread for every hand of every lane that some program uses, but for compute, which is the
// caller's. They live as long as this object and wait for work between runs.
class LaneThreads {
 public:
  using Work = std::function<void(Lane lane, int program, std::size_t worker)>;
  // work: does not throw, and what it uses outlives this object. begin: first thing in each thread.
  LaneThreads(const LaneSchedules& schedules, std::function<void()> begin, Work work);
  ~LaneThreads();
  LaneThreads(const LaneThreads&) = delete;
  LaneThreads& operator=(const LaneThreads&) = delete;

  // Returns when the work of every lane has. Allocates nothing.
  void run(int program);

 private:
  void thread_main(Lane lane, std::size_t worker);
  void join();

  std::function<void()> begin_;
  Work work_;
  std::mutex mutex_;
  std::condition_variable start_, ended_;
  std::uint64_t generation_ = 0;
  int program_ = -1;
  std::size_t busy_ = 0;
  bool quit_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace ballast
