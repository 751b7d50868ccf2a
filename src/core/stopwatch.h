#pragma once

#include <chrono>
#include <utility>

namespace ballast {

// Runs from where it is made.
class Stopwatch {
 public:
  double seconds() const { return between(begin_, Clock::now()); }

  // Seconds so far; from here on it counts anew, and no time is lost between laps.
  double lap() {
    const Clock::time_point before = std::exchange(begin_, Clock::now());
    return between(before, begin_);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double between(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
  }

  Clock::time_point begin_ = Clock::now();
};

}  // namespace ballast
