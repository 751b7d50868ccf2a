#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>

namespace ballast {

// Tells the person who waits how far something is and when it will be done, if it takes more than
// two seconds: one line that rewrites itself on a terminal, else a line about every ten seconds.
//   ballast: training: 12 of 100, 3.21 s each, 4 min 42 s left
//   ballast: reading weights: 3.210 GB of 28.60 GB, 1.204 GB/s, 21 s left
// Where a program shows progress itself (log::set_sink) that gets it, from the start on.
// For one thread. add() allocates nothing. Silent when log::level() hides info.
class Progress {
 public:
  using Time = std::chrono::steady_clock::time_point;
  enum class Unit { count, bytes };
  struct Output {
    std::FILE* file = nullptr;     // nullptr: stderr
    std::optional<bool> terminal;  // nullopt: what isatty() says
    std::function<Time()> now;     // empty: steady_clock
  };

  // total 0: unknown, then no time left is given. done: what was there at the start (a resumed
  // run); it does not count towards the speed.
  Progress(std::string what, std::int64_t total, Unit unit, std::int64_t done, Output output);
  Progress(std::string what, std::int64_t total, Unit unit = Unit::count, std::int64_t done = 0);
  ~Progress();  // the closing line; says where it stopped if total was not reached
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void add(std::int64_t n = 1);

 private:
  double seconds(Time since) const;
  void show(bool last);
  void give(bool last);  // to who shows it itself

  std::string what_;
  std::int64_t total_, first_, done_;
  Unit unit_;
  Output output_;
  bool terminal_;
  int columns_;
  Time start_, shown_;
  bool any_shown_ = false;
};

// "42 s", "4 min 42 s", "3 h 05 min", "2 d 3 h"
std::string to_string(std::chrono::seconds duration);

}  // namespace ballast
