#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "plan/runner.h"
#include "report/run_info.h"
#include "report/run_log.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/resumed_checkpoint.h"
#include "train/checkpoint/runner_tensors.h"
#include "train/config/config.h"
#include "train/run/previews.h"
#include "train/run/run_records.h"
#include "train/step_programs.h"

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
class TrainingTask {
 public:
  virtual ~TrainingTask() = default;

  // Called first, before anything on disk or in memory changes: the checkpoint to go on from, or
  // none. The default is the newest whole one.
  virtual std::optional<FoundCheckpoint> find_checkpoint(const ResumedRun& run) {
    return find_resumed(run);
  }
  // Files that stand in the run's folder from the beginning.
  virtual void prepare(const std::string& /*folder*/) {}

  // All programs, `after_restore` among them; they need what was planned.
  virtual void record(ProgramSet& set) = 0;
  virtual void load(Runner& runner) = 0;  // weights and state as before the first step
  // Samples are read from there on.
  virtual void start(Runner& runner, const FeedPosition& from) = 0;

  // The list that gradients() and update() run.
  void use_list(StepPrograms list) { step_ = std::move(list); }
  void begin_step() { step_.begin_step(); }

  // Of the step to come.
  virtual std::int64_t epoch() const = 0;
  virtual bool last_of_epoch() const = 0;
  virtual std::vector<std::string> sample_ids() const = 0;

  // Fills in loss, norm and times. examples: seen in the run before this step.
  virtual void gradients(Runner& runner, std::int64_t examples, StepRecord& record) = 0;
  virtual void update(Runner& runner, StepRecord& record) = 0;
  virtual void next_step() = 0;
  // The bits that any rank wishes, after a step; all ranks ask at the same time.
  virtual std::uint32_t agree(Runner&, std::uint32_t wish) { return wish; }
  virtual std::vector<UpdatedTensor> trained() const = 0;
  virtual Buffer grad_norm() const = 0;
  // Of all trained tensors together: finite where every element is (record_value_norm).
  double value_norm(Runner& runner) const { return run_value_norm(runner, grad_norm()); }
  // Of the last step, for TensorBoard, besides the loss.
  virtual std::vector<Scalar> scalars() const { return {}; }

  virtual bool evaluates() const { return false; }
  // After a step; by_cadence: as the configuration says.
  virtual bool evaluation_due(const TrainerState&, bool by_cadence) const { return by_cadence; }
  virtual void evaluate(Runner&, std::int64_t, RunRecords&) {}
  // What was evaluated last is to be kept: a checkpoint is made at once.
  virtual bool wants_checkpoint() const { return false; }
  // Images of how far it is.
  virtual bool draws_previews() const { return false; }
  // Into `folder`, as it is after `step`; stop: asked now and then, true ends it early.
  virtual std::vector<DrawnPreview> preview(Runner&, std::int64_t /*step*/,
                                            const std::string& /*folder*/,
                                            const std::function<bool()>& /*stop*/) {
    return {};
  }
  virtual void epoch_ended(double /*mean_loss*/) {}
  // Why the run ends before its last step; nullopt: it goes on.
  virtual std::optional<std::string> ends_early(const TrainerState&) const { return std::nullopt; }

  // Values and optimizer state, for checkpoints. values_only: an optimizer that starts anew.
  virtual std::vector<SavedTensor> saved_tensors(Runner& runner) const {
    return train::saved_tensors(trained(), runner);
  }
  virtual std::vector<LoadedTensor> loaded_tensors(Runner& runner, bool values_only) const {
    return train::loaded_tensors(trained(), runner, values_only);
  }
  // What else of it a checkpoint keeps.
  virtual void put_state(TrainerState&) const {}
  virtual void take_state(const TrainerState&, bool /*values_only*/) {}
  // Where the run goes on may be another place than where it stopped, when its data is another.
  virtual void resumed(TrainerState&) {}
  // Further files of a checkpoint, into `to`; run: the run's folder.
  virtual void add_files(const std::string& /*run*/, const std::string& /*to*/,
                         const TrainerState&) {}
  // A step whose checkpoint is not rotated away; -1: none.
  virtual std::int64_t protected_step() const { return -1; }
  // Before the last model is saved: what is saved may be of an earlier step.
  virtual void choose_final_model(Runner&, const std::string& /*run*/) {}

  virtual std::string file_name() const = 0;  // of the saved model
  // Returns the paths.
  virtual std::vector<std::string> save(Runner& runner, const SaveTarget& target,
                                        std::int64_t step) = 0;

 protected:
  StepPrograms step_;
};

// What the loop knows of a run, whatever is trained.
struct RunSetup {
  TrainConfig config;
  std::int64_t total_steps = 0;
  ScheduleOptions schedule;
  Backend backend;
  std::string model;                                      // its path, for messages
  std::string model_hash;                                 // of the weights it begins with
  Bytes device, host;                                     // planned arenas
  Bytes disk = {};                                        // ... and scratch file
  std::vector<std::vector<fit::StepProgram>> steps = {};  // by kind, as they were planned
  RunInfo info;                                           // with the planned memory of the process

  // The run's folder is output_dir itself, where the trained model goes as well, with checkpoints
  // named as transformers names them; a run that resumes goes on with the configuration of today.
  bool in_output_dir = false;
  std::string config_hash = {};
  std::string webhook = {};         // an address; "": that of the environment
  std::string optimizer_flag = {};  // that names the optimizer; "": a file's [optimizer] does
};

}  // namespace ballast::train
