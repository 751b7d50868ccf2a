#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace ballast {

// A fixed set of threads for work that is cut into independent tasks. parallel() allocates nothing;
// which thread runs a task is not defined, so a task must give the same result on any of them.
// One parallel() at a time: the pool belongs to one lane.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // the caller of parallel() counts as one
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls f(task, worker) for task in [0, tasks); worker in [0, threads()) names the scratch memory
  // the task may use. Returns when all are done; the first exception is thrown again here.
  template <class F>
  void parallel(std::int64_t tasks, F&& f) {
    using Fn = std::remove_reference_t<F>;
    run(
        tasks,
        [](void* fn, std::int64_t task, int worker) { (*static_cast<Fn*>(fn))(task, worker); },
        const_cast<void*>(static_cast<const void*>(&f)));
  }

 private:
  using Call = void (*)(void*, std::int64_t, int);
  void run(std::int64_t tasks, Call call, void* fn);
  void work(int worker);
  void stop();
  void take_tasks(int worker);

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable start_, done_;
  std::uint64_t generation_ = 0;
  int busy_ = 0;
  bool stop_ = false;
  Call call_ = nullptr;
  void* fn_ = nullptr;
  std::int64_t tasks_ = 0;
  std::atomic<std::int64_t> next_{0};
  std::exception_ptr error_;
};

}  // namespace ballast
