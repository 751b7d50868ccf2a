#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "train/config/config.h"

namespace ballast::train {

// A step that was made.
struct StepDone {
  std::int64_t step = 0;            // from 1
  std::int64_t epoch_finished = 0;  // the epoch that it completed, from 1; 0: none
};

// What a step has made due; the reasons matter since saved models are named after them.
struct Due {
  bool epoch = false, step = false, time = false;

  explicit operator bool() const { return epoch || step || time; }
};

// When to save, checkpoint or evaluate. Epochs, steps and examples depend on the step's number
// alone, so a resumed run does the same as one that was never stopped: step N is due when N is a
// multiple of steps, or of examples / global_batch (rounded down, at least 1). Minutes count from
// the beginning or the last done().
class CadenceWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // what: "save_every_n", for messages. now: empty for the steady clock.
  CadenceWatch(const std::string& what, const Cadence& cadence, std::int64_t global_batch,
               std::function<Time()> now = {});

  Due due(const StepDone& done) const;
  void done();  // it was carried out, for whatever reason

 private:
  Cadence cadence_;
  std::int64_t example_steps_ = 0;  // 0: none
  std::function<Time()> now_;
  Time since_;
};

}  // namespace ballast::train
