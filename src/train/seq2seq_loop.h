#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plan/runner.h"
#include "report/flight_record.h"
#include "report/train_progress.h"
#include "report/webhook.h"
#include "train/cadence.h"
#include "train/clock.h"
#include "train/nan_guard.h"
#include "train/run_folder.h"
#include "train/run_records.h"
#include "train/seq2seq_trainer.h"
#include "train/trainer_state.h"
#include "train/training_checkpoint.h"

namespace ballast::train {

// When a loss that does not get better ends a run.
class EarlyStop {
 public:
  EarlyStop(std::int64_t patience, double least_gain) : patience_(patience), gain_(least_gain) {}

  void take(double loss);
  bool exhausted() const { return patience_ > 0 && worse >= patience_; }

  double best = 0;
  std::int64_t checks = 0, worse = 0;  // how many in all, and since the best

 private:
  std::int64_t patience_;
  double gain_;
};

// A fine-tune in progress; train_seq2seq() is its only user. Steps are in
// seq2seq_trainer.cpp, what is kept of them on disk in seq2seq_saves.cpp.
class Seq2SeqLoop {
 public:
  Seq2SeqLoop(Seq2SeqRun run, t5::PlannedRun planned, const TrainOptions& options);
  TrainOutcome run();

 private:
  void load();
  void find_checkpoint_to_resume();
  void resume();
  void step();
  double run_batches(StepRecord& record);  // forward and backward of all; the loss
  void bring(const t5::StepIo& io, std::span<const std::uint32_t> samples);
  void record_step(StepRecord& record);
  void after_step();
  double evaluate();
  void enter_epoch();
  bool last_of_epoch() const { return state_.batches + 1 == run_.steps_per_epoch; }
  void save_checkpoint_now(const char* why);
  void save_model();
  std::string finish(bool stopped);
  void memory_line();
  void tell(WebhookMessage::Kind kind, std::string text);
  void event(std::string_view kind, const std::string& text) {
    if (records_) records_->event(state_.step, kind, text);
  }
  void failed(const char* why);
  void phase(Phase p);
  bool on_gpu() const { return set_.backend.device == Device::cuda; }
  MemoryNumbers arenas() const;
  std::vector<LoadedTensor> loaded() const;

  TrainOptions options_;
  Seq2SeqRun run_;
  RunFolder folder_;
  ProgramSet set_;
  std::unique_ptr<t5::Seq2Seq> model_;
  MemoryPlan plan_;
  MemoryNumbers planned_;
  std::unique_ptr<Runner> runner_;
  RunInfo info_;

  std::optional<FoundCheckpoint> resumed_;
  TrainerState state_;
  std::int64_t updates_ = 0;
  NanGuard nan_guard_;
  EarlyStop early_stop_;
  CadenceWatch save_, evaluate_;
  std::int64_t checkpointed_step_ = -1;
  double loss_ = 0, epoch_loss_ = 0;
  std::int64_t epoch_steps_ = 0;
  double extra_seconds_ = 0, began_ = 0;
  std::vector<std::uint32_t> order_, eval_order_;

  std::optional<FlightRecorder> flight_;
  std::optional<RunRecords> records_;
  std::optional<MemoryMonitor> monitor_;
  std::optional<TrainProgress> progress_;
  std::unique_ptr<Webhook> webhook_;
};

}  // namespace ballast::train
