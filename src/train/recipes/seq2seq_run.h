#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/pair_batches.h"
#include "fit/advice.h"
#include "infer/text_generator.h"
#include "io/weight_files.h"
#include "models/t5/fit_job.h"
#include "models/t5/lora_file.h"
#include "models/t5/published.h"
#include "report/plan_table.h"
#include "train/config/seq2seq_config.h"
#include "train/run/device_choice.h"
#include "train/trainer.h"

namespace ballast::train {

inline constexpr const char* kRateNumber = "learning_rate";  // in TrainerState::numbers

// The texts of one file, and the shapes that runs of its batches have.
struct PairData {
  data::TokenCache cache;
  data::BatchOptions batches;
  std::vector<data::PairLength> shapes;  // every one that occurs, the largest first
  std::vector<std::int64_t> runs;        // by shape, in all epochs
};

// A fine-tune with everything that is known before a byte of its weights is
// read: model, tokens, what is recorded, and inside which budget.
struct Seq2SeqRun {
  Seq2SeqConfig config;
  std::string title;                       // "flan-t5-xl, fine-tune"
  std::string shapes;                      // "8 x 16 samples of up to 256 and 512 tokens"
  std::string model_folder;                // where config.json and the tokenizer are
  std::string tokenizer;                   // a folder or file
  t5::AdapterConfig adapter;               // of its files, where adapters train
  std::vector<WeightFiles> checkpoints;    // one; none of a model that is not here
  std::optional<t5::Published> published;  // instead of them, where only a plan is made
  std::string resume_from;                 // a folder checkpoint-N; "": from the beginning
  std::optional<PairData> train, eval;
  std::optional<data::TokenCache> test;  // texts are written for it when training is over
  fit::Request request = {.job = t5::FitJob()};
  std::int64_t steps_per_epoch = 0, total_steps = 0;
  std::int64_t micro_batches_per_visit = 1;  // that share a run
  ScheduleOptions schedule;
  std::vector<std::string> notes;

  const t5::Config& model() const { return t5::job_of(request).seq2seq.config; }
  // How texts are written, in evaluations and in the end.
  infer::GenerateOptions generation() const;
  // Runs of the step program before an update.
  std::int64_t runs_per_step() const {
    return (config.accumulation + micro_batches_per_visit - 1) / micro_batches_per_visit;
  }
};

// Opens the model, tokenises the texts (with progress, into
// <output_dir>/token_cache) and works out what will be recorded.
Seq2SeqRun prepare_seq2seq(Seq2SeqConfig config, const RunTarget& target);

// So many micro-batches of a step share a run, and with it the visits of blocks. They are padded
// alike: what is recorded is worked out anew.
void share_visits(Seq2SeqRun& run, std::int64_t micro_batches);

// The fastest predicted plan that fits, or what the leanest one misses. Where its weights stream
// and nothing was said, as many micro-batches share a visit as make the whole run fastest: blocks
// come over the link once for all of them.
fit::Outcome plan_seq2seq(Seq2SeqRun& run);

// Predicted seconds of an optimizer step, in the mean over the run.
double seconds_per_step(const Seq2SeqRun& run, const fit::PlannedRun& planned);

// The samples of the r-th run of an optimizer step: the micro-batches that
// share it.
std::span<const std::uint32_t> samples_of_run(std::span<const std::uint32_t> step,
                                              const Seq2SeqRun& run, std::int64_t r);

// How its plan or refusal is said.
PlanTitle title_of(const Seq2SeqRun& run);
// Refers to `planned`.
PlanView view_of(const Seq2SeqRun& run, const fit::PlannedRun& planned);
// What could be typed differently, for a refusal.
std::vector<fit::Change> possible_changes(const Seq2SeqRun& run, const Refusal& refusal);

// Runs what was planned, from the beginning or from a checkpoint, to its end or to a signal. In
// config.output_dir are then
//   checkpoint-N/   model.safetensors, config.json, tokenizer and trainer_state.json as
//   transformers
//                   has them, and state.safetensors with what the optimizer keeps; with adapters
//                   adapter_model.safetensors and adapter_config.json as PEFT has them
//   the same without state.safetensors: the trained model or adapter, when training is over
//   run_log.jsonl, report.html, events...: records
// Same promises as train() in train/trainer.h (seq2seq_task.cpp).
TrainOutcome train_seq2seq(Seq2SeqRun run, fit::PlannedRun planned, const TrainOptions& options);

}  // namespace ballast::train
