#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/token_cache.h"
#include "models/t5/adapters.h"
#include "nn/block_weights.h"
#include "train/config/config.h"

namespace ballast::train {

// Whose flags they were: decides defaults.
enum class Seq2SeqDialect : std::uint8_t {
  fine_tune,     // the FLAN-T5 job: --pretrained-model, --model-output
  transformers,  // run_summarization: --model_name_or_path, --output_dir
};

// How losses of the tokens of one optimizer step are averaged.
enum class LossMean : std::uint8_t {
  tokens,         // over all of them
  micro_batches,  // over those of each micro-batch, then over micro-batches
};

// What tells the best of several evaluations: their loss, or a mean score of the texts that the
// model writes (train/recipes/rouge.h).
enum class EvalMetric : std::uint8_t { loss, rouge1, rouge2, rouge_l, rouge_lsum };
std::string_view name_of(EvalMetric m);  // "loss", "rougeL"

// A fine-tune of an encoder-decoder on pairs of texts, whichever tool's words it was written in.
struct Seq2SeqConfig {
  std::string source;  // path of the file it came from; "": flags only
  Seq2SeqDialect dialect = Seq2SeqDialect::transformers;
  std::string model;       // a folder as Hugging Face has it; "": the checkpoint that is resumed
  std::string tokenizer;   // "": the model's
  std::string output_dir;  // of checkpoints, records and the trained model
  bool overwrite = false;  // although there are checkpoints in it
  std::optional<std::string> resume;  // a checkpoint folder; "": the newest in output_dir

  std::string train_file, validation_file;
  std::string test_file;  // texts are written for it at the end, instead of the validation file
  data::TokenOptions tokens;
  std::int64_t max_train_samples = 0, max_eval_samples = 0;  // 0: all
  bool pad_to_max = false;
  std::int64_t pad_multiple = 1;
  bool group_by_length = false;
  std::int64_t workers = 0;  // that tokenise; 0: one for every processor

  std::int64_t epochs = 3;
  std::optional<std::int64_t> max_steps;
  std::int64_t batch_size = 8, eval_batch_size = 8, accumulation = 1;
  // Micro-batches that share a visit of every block; 0: where weights stream, as many as pay.
  std::int64_t micro_batches_per_visit = 0;
  LossMean loss_mean = LossMean::tokens;
  std::optional<double> learning_rate;  // none: by the model's name (fine_tune), 5e-5
  ScheduleKind schedule = ScheduleKind::linear;
  std::optional<std::int64_t> warmup_steps;  // none: warmup_share of all, at most max_warmup
  double warmup_share = 0;
  std::int64_t max_warmup = std::int64_t{1} << 40;
  OptimizerOptions optimizer;
  double max_grad_norm = 1;             // 0: no clipping
  std::optional<WeightFormat> weights;  // none: bf16 on a GPU, f32 on the CPU
  DType gradients = DType::f32;         // of the blocks' matrices
  std::optional<LoraOptions> lora;      // adapters train, the weights do not change
  std::optional<double> dropout;        // none: what config.json says
  std::optional<DType> save_dtype;      // of the trained model; none: that of the weights
  std::uint64_t seed = 42;

  std::int64_t save_steps = 500;  // 0: at the end only
  std::int64_t eval_steps = 0;    // 0: after every epoch
  bool evaluate_first = false;    // before the first step as well
  int keep_checkpoints = 3;
  std::int64_t logging_steps = 1, memory_line_steps = 100;
  std::int64_t print_steps = 0;  // 0: those of logging_steps
  EvalMetric best_metric = EvalMetric::loss;
  bool greater_is_better = false;   // of it
  bool load_best = false;           // the model of the best evaluation is what is saved in the end
  std::int64_t patience = 0;        // evaluations without a better one that end the run; 0: none
  double min_gain = 0;              // one that is better by less is not better
  std::int64_t patience_steps = 0;  // steps and epochs before the run may end that way
  std::int64_t patience_epochs = 0;
  OnNan on_nan = OnNan::skip;

  // Texts for the validation file: scored in every evaluation, and written when training is over.
  bool predict = false;
  std::int64_t beams = 1, generation_length = 0;  // 0: max_target
  std::int64_t predictions = 0;                   // how many; 0: all

  MemoryConfig memory;
  std::string webhook;          // a secret
  double webhook_minutes = 30;  // between two messages of progress; 0: none
  bool plan_only = false;
  std::vector<std::string> notes;  // one line per flag that was accepted without effect, and why
};

// Whether a command line, or the file that it names, describes such a run: [model] type = 't5', or
// flags that no other trainer has.
bool is_seq2seq(std::span<const std::string> arguments);

// What is wrong with a file is ErrorCode::input with its line, with a flag ErrorCode::usage.
// Whether files exist is for those who open them.
Seq2SeqConfig read_seq2seq_config(std::span<const std::string> arguments);

// All flags, for --help.
std::string seq2seq_flags_help();

// What the note's job takes where nothing is said: 1e-4 for xxl, 3e-4 for xl, else 5e-4. By the
// model's name, or by its width where a folder is called otherwise.
double usual_rate(std::string_view model, std::int64_t width);

}  // namespace ballast::train
