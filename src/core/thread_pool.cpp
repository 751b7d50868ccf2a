#include "core/thread_pool.h"

#include "core/error.h"
#include "core/start_thread.h"
#include "core/to_size.h"

namespace ballast {

ThreadPool::ThreadPool(int threads) {
  check(threads >= 1, "a thread pool needs at least one thread, got {}", threads);
  workers_.reserve(to_size(threads) - 1);
  try {
    for (int i = 1; i < threads; ++i) {
      workers_.push_back(start_thread("computing", [this, i] { work(i); }));
    }
  } catch (...) {
    stop();  // no destructor runs
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& t : workers_) t.join();
}

void ThreadPool::run(std::int64_t tasks, Call call, void* fn) {
  if (tasks <= 0) return;
  if (workers_.empty() || tasks == 1) {  // waking threads costs more than one task gains
    for (std::int64_t i = 0; i < tasks; ++i) call(fn, i, 0);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    call_ = call;
    fn_ = fn;
    tasks_ = tasks;
    next_.store(0, std::memory_order_relaxed);
    busy_ = static_cast<int>(workers_.size());
    ++generation_;
  }
  start_.notify_all();
  take_tasks(0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return busy_ == 0; });
  if (error_) {
    const std::exception_ptr error = std::exchange(error_, nullptr);
    lock.unlock();
    std::rethrow_exception(error);
  }
}

void ThreadPool::work(int worker) {
  std::uint64_t seen = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      start_.wait(lock, [&] { return stop_ || generation_ != seen; });
      if (stop_) return;
      seen = generation_;
    }
    take_tasks(worker);
    const std::lock_guard lock(mutex_);
    if (--busy_ == 0) done_.notify_one();
  }
}

void ThreadPool::take_tasks(int worker) {
  try {
    for (std::int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_;) {
      call_(fn_, i, worker);
    }
  } catch (...) {
    next_.store(tasks_, std::memory_order_relaxed);  // the others stop at their next task
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

}  // namespace ballast
