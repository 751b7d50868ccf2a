#pragma once

#include <functional>
#include <memory>
#include <string>

#include "report/run_log.h"
#include "train/ranks.h"
#include "train/run/prepared_run.h"
#include "train/training_task.h"

namespace ballast::train {

struct TrainOptions {
  std::string command;     // as typed, without secrets, for the records
  bool check_nan = false;  // find the instruction that made a NaN: slow
  bool remember = false;   // where the run is, for `ballast doctor` without a path
  // For a program that trains as part of itself.
  bool handle_signals = true;  // SIGINT and SIGTERM stop it (stop_signal.h)
  std::function<void(const StepRecord&)> on_step = {};  // after each
  std::function<bool()> stop = {};                      // asked after each step; true is a request
  Ranks ranks = {};
  LineListener on_record = {};  // gets each line of the run log as well
  // Called once, when the run has a folder and goes on: not where --resume is refused.
  std::function<void(const std::string& folder)> on_folder = {};
};

struct TrainOutcome {
  std::string folder;  // of the run
  std::int64_t steps = 0;
  double last_loss = 0;
  bool stopped = false;     // by a signal or a save_quit file, before the end
  std::string report;       // path of the HTML page; empty when it could not be written
  Bytes planned, measured;  // RAM of the process: planned total, most that was seen
  Bytes planned_gpu = {}, measured_gpu = {};  // the same of its GPU's memory; 0 without one
  // Of the steps of this process, where the run counts batches; else 0.
  double samples_per_second = 0, batches_per_second = 0;
};

// Runs what was planned, from the beginning or from the newest whole checkpoint, to its end or to a
// signal. Whatever ends it, checkpoints and saved models that were announced are whole on disk. A
// checkpoint or model that cannot be written ends it; a log, an event file or a report does not:
// that is said once.
TrainOutcome train(RunSetup setup, std::unique_ptr<TrainingTask> task, const TrainOptions& options);
// A transformer (dit_task.cpp).
TrainOutcome train(PreparedRun run, fit::PlannedRun planned, const TrainOptions& options);

}  // namespace ballast::train
