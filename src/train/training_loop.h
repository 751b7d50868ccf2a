#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/stopwatch.h"
#include "plan/runner.h"
#include "report/flight_record.h"
#include "report/train_progress.h"
#include "report/webhook.h"
#include "train/cadence.h"
#include "train/checkpoint/runner_tensors.h"
#include "train/checkpoint/trainer_state.h"
#include "train/nan_guard.h"
#include "train/run/run_folder.h"
#include "train/run/run_records.h"
#include "train/stop_signal.h"
#include "train/trainer.h"

namespace ballast::train {

// A run in progress; train() is its only user. Steps are in trainer.cpp, what is kept of them on
// disk (checkpoints, models, resuming, the end) in training_saves.cpp, messages to a webhook in
// training_messages.cpp.
class TrainingLoop {
 public:
  TrainingLoop(RunSetup setup, std::unique_ptr<TrainingTask> task, const TrainOptions& options);
  ~TrainingLoop();
  TrainingLoop(const TrainingLoop&) = delete;
  TrainingLoop& operator=(const TrainingLoop&) = delete;
  TrainOutcome run();

 private:
  void open_flight_record();
  void load();        // the weights, and the state of the run that is resumed
  void start();       // records, messages, and what comes before the first step
  bool take_steps();  // true: stopped before the end
  // After a step each rank tells what it was asked for; then all ranks do it.
  static constexpr std::uint32_t kSave = 1, kStop = 2, kEndEarly = 4;
  bool serve_requests(bool end_early);  // of the user; true: to stop
  bool leads() const { return options_.ranks.leads(); }
  void check_same_step();  // of all ranks
  TrainOutcome outcome(bool stopped);
  std::optional<FoundCheckpoint> find_resumed(std::optional<std::int64_t> before = {});
  void resume();
  bool step();          // false: the weights were not touched, the step's numbers were no numbers
  void check_values();  // fails where a trained tensor is not finite any more
  [[noreturn]] void fail_non_finite(const NonFinite& where) const;
  void record_step(StepRecord& record);
  void after_step(bool last_of_epoch);
  void evaluate();
  std::int64_t x_axis_position() const;  // of TensorBoard: the step, or samples so far
  void preview();
  void keep_configs();
  void save(SavePoint at);
  void save_file(const std::string& name);  // in output_dir itself
  template <class Write>
  void saving(Write&& write);  // returns the paths
  void save_checkpoint_now(const char* why);
  void memory_line();
  void context_line();
  std::string finish(bool stopped);
  void open_webhook();
  void notify(WebhookMessage::Kind kind, std::string text);
  void report_progress(const StepRecord& record);  // where it is time for it
  // ", 12.3 samples/s, 1.54 batches/s"; "" where batches are not counted.
  std::string speed_text() const;
  void event(std::string_view kind, const std::string& text) {
    if (records_) records_->event(state_.step, kind, text);
  }
  void failed(const Error& e);
  void require_same_resume();                 // of all ranks
  void tell_state(const FlightState& state);  // to the other ranks
  void phase(Phase p);
  bool on_gpu() const { return set_.backend.device == Device::cuda; }
  MemoryNumbers arenas() const;

  TrainOptions options_;
  RunSetup run_;
  RunFolder folder_;
  CheckpointNames names_;
  std::unique_ptr<TrainingTask> task_;
  ProgramSet set_;
  MemoryPlan plan_;
  MemoryNumbers planned_;
  std::vector<std::unique_ptr<Communicator>> communicators_;  // by ProgramSet::groups
  std::unique_ptr<Runner> runner_;

  std::optional<FoundCheckpoint> resumed_;
  TrainerState state_;
  NanGuard nan_guard_;
  CadenceWatch save_, checkpoint_, evaluate_, preview_;
  std::int64_t saved_step_ = -1, checkpointed_step_ = -1;
  double loss_ = 0, epoch_loss_ = 0;
  std::int64_t epoch_steps_ = 0;
  double extra_seconds_ = 0;  // of saving since the last step
  Stopwatch running_;         // since the run's begin or its last checkpoint
  Stopwatch reported_;        // since the last message of progress
  std::int64_t samples_done_ = 0, batches_done_ = 0;  // of this process
  double step_seconds_ = 0;                           // of these
  bool ends_early_ = false;

  ControlHeartbeat control_state_;  // what other ranks hear of this one

  std::optional<StopSignal> signal_;
  std::optional<FlightRecorder> flight_;
  std::optional<RunRecords> records_;
  std::optional<MemoryMonitor> monitor_;
  std::optional<TrainProgress> progress_;
  std::unique_ptr<Webhook> webhook_;
};

}  // namespace ballast::train
