#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>

#include "report/memory_monitor.h"

namespace ballast {

// What the person who waits for a training run sees: one line that rewrites itself on a terminal,
// else a line every so many steps, or one a second.
//   ballast: step 120/2000, epoch 3, loss 0.0812 (0.0930), 3.21 s/step, 1 h 40 min left,
//            GPU 9.11/9.26 GB, RAM 3.02/3.40 GB
// The second loss is smoothed, the second size is the planned one. Where a terminal is narrower,
// words go and memory stays; 80 columns have room for
//   step 120/2000 loss 0.0812 3.21 s 1h40m left GPU 9.11/9.26 GB RAM 3.02/3.40 GB
// For one thread; step() allocates nothing. Silent when log::level() hides info.
class TrainProgress {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Output {
    std::FILE* file = nullptr;     // nullptr: stderr
    std::optional<bool> terminal;  // nullopt: what isatty() says
    std::optional<int> columns;    // nullopt: what the terminal has
    std::function<Time()> now;     // empty: steady_clock
  };
  struct Options {
    std::int64_t total = 0;        // steps; 0: unknown, then no time left is given
    std::int64_t done = 0;         // before this process started; does not count towards the speed
    std::int64_t print_every = 1;  // steps between two lines in a file or pipe; 1: one a second
    bool gpu = false;              // whether there is GPU memory to speak of
  };
  struct Step {
    std::int64_t step = 0;  // done with it
    std::int64_t epoch = 0;
    double loss = 0;
    double seconds = 0;
    MemoryNumbers planned, measured;
    // Where batches are counted, the line gives samples and batches per second.
    std::int64_t samples = 0, batches = 0;
  };

  TrainProgress(const Options& options, Output output);
  explicit TrainProgress(const Options& options);
  ~TrainProgress();  // leaves the last line standing
  TrainProgress(const TrainProgress&) = delete;
  TrainProgress& operator=(const TrainProgress&) = delete;

  void step(const Step& step);
  // Mean of the losses, later ones counting more: 2 % of each new one, the plain mean of the first
  // fifty. NaN and infinite losses are left out.
  double smoothed_loss() const { return smoothed_; }
  // From the mean step time of late, at most the last fifty steps; nullopt before the first.
  std::optional<double> seconds_left() const;
  double seconds_per_step() const { return pace_; }

 private:
  void show(bool last);

  Options options_;
  Output output_;
  bool terminal_;
  int columns_;
  Step last_;
  std::int64_t steps_ = 0, losses_ = 0;
  double smoothed_ = 0, pace_ = 0;
  double samples_ = 0, batches_ = 0;  // mean of a step
  Time shown_{};
  bool any_shown_ = false, fresh_ = false;
};

}  // namespace ballast
