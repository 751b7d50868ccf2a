#pragma once

#include <atomic>
#include <chrono>

namespace ballast::test {

// A clock that stands still until a test moves it; `FakeClock::now` goes where a Clock is wanted.
// There is one per process, as a plain function has no object.
struct FakeClock {
  using Time = std::chrono::steady_clock::time_point;

  static Time now() { return time_.load(); }
  static void advance(std::chrono::nanoseconds by) { time_ = now() + by; }

 private:
  static inline std::atomic<Time> time_{Time(std::chrono::hours(1))};
};

}  // namespace ballast::test
