#include "data/prefetcher.h"

#include <utility>

#include "core/error.h"
#include "core/start_thread.h"

namespace ballast::data {

Prefetcher::Prefetcher(const Dataset& dataset)
    : dataset_(dataset), thread_(start_thread("reading samples", [this] { run(); })) {}

Prefetcher::~Prefetcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Prefetcher::request(std::span<const SampleRequest> batch) {
  {
    const std::lock_guard lock(mutex_);
    check(state_ == State::idle, "a request was made before the last one was waited for");
    batch_.assign(batch.begin(), batch.end());
    state_ = State::reading;
  }
  changed_.notify_all();
}

void Prefetcher::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return state_ != State::reading; });
  state_ = State::idle;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

bool Prefetcher::under_way() const {
  const std::lock_guard lock(mutex_);
  return state_ != State::idle;
}

void Prefetcher::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || state_ == State::reading; });
    if (stop_) return;
    std::exception_ptr error;
    for (const SampleRequest& r : batch_) {
      // Unlocked: the caller does not touch batch_ until it was told that this is done.
      lock.unlock();
      try {
        dataset_.read(r.sample, r.use_empty_caption, r.to);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      if (error || stop_) break;
    }
    error_ = std::move(error);
    state_ = State::done;
    changed_.notify_all();
  }
}

}  // namespace ballast::data
