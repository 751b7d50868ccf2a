#pragma once

#include <chrono>
#include <utility>

namespace ballast {

// What tells the time. Tests give one that they move themselves.
using Clock = std::chrono::steady_clock::time_point (*)();

// Runs from where it is made.
class Stopwatch {
 public:
  Stopwatch() : Stopwatch(std::chrono::steady_clock::now) {}
  explicit Stopwatch(Clock now) : now_(now), begin_(now()) {}

  double seconds() const { return between(begin_, now_()); }

  // Seconds so far; from here on it counts anew, and no time is lost between laps.
  double lap() {
    const Time before = std::exchange(begin_, now_());
    return between(before, begin_);
  }

 private:
  using Time = std::chrono::steady_clock::time_point;
  static double between(Time from, Time to) {
    return std::chrono::duration<double>(to - from).count();
  }

  Clock now_;
  Time begin_;
};

}  // namespace ballast
