#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/runner.h"
#include "report/run_info.h"
#include "report/run_log.h"
#include "train/config.h"
#include "train/run_records.h"
#include "train/training_checkpoint.h"

namespace ballast::train {

// Where in the data a run stands.
struct FeedPosition {
  std::int64_t step = 1;   // the optimizer step to come
  std::int64_t epoch = 1;  // it belongs to
  std::int64_t batch = 0;  // of that epoch
};

// Names and places of the model's files in a folder of the run, or beside it under output_name.
struct SaveTarget {
  std::string folder;     // where they go
  std::string file_name;  // without a second expert's mark: "adapter_model.safetensors"
};

// What a training loop trains: the programs of a model, the samples of its steps, what is kept of
// it. The loop owns the programs' set, plan and runner, and calls record(), load(), start(), then
// for each step gradients(), update(), next_step().
class Trainee {
 public:
  virtual ~Trainee() = default;

  // All programs, `after_restore` among them; they need what was planned.
  virtual void record(ProgramSet& set) = 0;
  virtual void load(Runner& runner) = 0;  // weights and state as before the first step
  // Samples are read from there on.
  virtual void start(Runner& runner, const FeedPosition& from) = 0;

  // Of the step to come.
  virtual std::int64_t epoch() const = 0;
  virtual bool last_of_epoch() const = 0;
  virtual std::vector<std::string> sample_ids() const = 0;

  // Fills in loss, norm and times. examples: seen in the run before this step.
  virtual void gradients(Runner& runner, std::int64_t examples, StepRecord& record) = 0;
  virtual void update(Runner& runner, StepRecord& record) = 0;
  virtual void next_step() = 0;

  virtual bool evaluates() const { return false; }
  virtual void evaluate(Runner&, std::int64_t, RunRecords&) {}

  // Values and optimizer state, for checkpoints. values_only: an optimizer that starts anew.
  virtual std::vector<SavedTensor> saved_tensors(Runner& runner) const = 0;
  virtual std::vector<LoadedTensor> loaded_tensors(Runner& runner, bool values_only) const = 0;
  // What else of it a checkpoint keeps.
  virtual void put_state(TrainerState&) const {}
  virtual void take_state(const TrainerState&, bool /*values_only*/) {}

  virtual std::string file_name() const = 0;  // of the saved model
  // Returns the paths.
  virtual std::vector<std::string> save(Runner& runner, const SaveTarget& target,
                                        std::int64_t step) = 0;
};

// What the loop knows of a run, whatever is trained.
struct RunSetup {
  TrainConfig config;
  std::int64_t total_steps = 0;
  ScheduleOptions schedule;
  Backend backend;
  std::string model;       // its path, for messages
  std::string model_hash;  // of the weights it begins with
  Bytes device, host;      // planned arenas
  RunInfo info;            // with the planned memory of the process
};

}  // namespace ballast::train
