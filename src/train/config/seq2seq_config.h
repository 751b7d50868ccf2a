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

inline constexpr std::array<EnumName<WeightFormat>, 4> kWeightNames = {
    {{"f32", WeightFormat::f32},
     {"float32", WeightFormat::f32},
     {"bf16", WeightFormat::bf16},
     {"bfloat16", WeightFormat::bf16}}};
inline constexpr std::array<EnumName<DType>, 4> kNumberNames = {{{"f32", DType::f32},
                                                                 {"float32", DType::f32},
                                                                 {"bf16", DType::bf16},
                                                                 {"bfloat16", DType::bf16}}};
inline constexpr std::array<EnumName<LossMean>, 2> kMeanNames = {
    {{"tokens", LossMean::tokens}, {"micro_batches", LossMean::micro_batches}}};

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

  // What has a flag of its own, under each of its names, besides the machine's options. A visitor
  // also gets the least count or the words of an enum.
  template <class Self, class Visit>
  static void fields(Self& c, Visit&& visit) {
    visit({"pretrained_model", "model_name_or_path"}, c.model,
          "the model: a folder as Hugging Face has it");
    visit({"model_output", "output_dir"}, c.output_dir,
          "where checkpoints and the trained model go");
    visit({"tokenizer", "tokenizer_name"}, c.tokenizer, "where the model's folder has none");
    visit({"train_file"}, c.train_file, "texts to train with: JSON Lines or CSV");
    visit({"validation_file"}, c.validation_file, "texts to evaluate with");
    visit({"test_file"}, c.test_file, "texts to predict for at the end, instead of those");
    visit({"overwrite_output_dir"}, c.overwrite, "begin anew although there are checkpoints");
    visit({"text_column"}, c.tokens.texts.source_column, "of the source");
    visit({"summary_column", "target_column"}, c.tokens.texts.target_column, "of the target");
    visit({"source_prefix"}, c.tokens.texts.source_prefix, "put before every source");
    visit({"max_source_length", "max_input_length"}, c.tokens.max_source,
          "tokens of a source; the rest is cut off", 1);
    visit({"max_target_length"}, c.tokens.max_target, "tokens of a target", 1);
    visit({"max_train_samples"}, c.max_train_samples, "no more than so many of the train file", 0);
    visit({"max_eval_samples"}, c.max_eval_samples, "the same of the validation file", 0);
    visit({"pad_to_max_length"}, c.pad_to_max, "every batch as long as the longest");
    visit({"pad_to_multiple_of"}, c.pad_multiple, "lengths of batches are multiples of this", 1);
    visit({"group_by_length"}, c.group_by_length,
          "samples of a step are about as long as each other");
    visit({"dataloader_num_workers", "preprocessing_num_workers"}, c.workers,
          "threads that tokenise; 0: one for every processor", 0);
    visit({"epochs", "num_train_epochs"}, c.epochs, "(3)", 1);
    visit({"batch_size", "per_device_train_batch_size"}, c.batch_size,
          "samples of a micro-batch (8)", 1);
    visit({"per_device_eval_batch_size"}, c.eval_batch_size, "the same of evaluation (8)", 1);
    visit({"gradient_accumulation_steps"}, c.accumulation, "micro-batches of a step", 1);
    visit({"micro_batches_per_visit"}, c.micro_batches_per_visit,
          "that share a visit of every block; 0: where weights stream, as many as pay (0)", 0);
    visit({"loss_mean"}, c.loss_mean, "over tokens of a step, or micro_batches, then over those",
          kMeanNames);
    visit({"seed"}, c.seed, "of order and dropout (42)", 0);
    visit({"max_grad_norm"}, c.max_grad_norm, "gradients are clipped to this norm; 0: never (1)");
    visit({"warmup_steps"}, c.warmup_steps, "of the learning rate", 0);
    visit({"weights"}, c.weights, "f32 or bf16: what is computed with", kWeightNames);
    visit({"gradient_dtype"}, c.gradients, "f32 or bf16: gradients of matrices", kNumberNames);
    visit({"save_dtype"}, c.save_dtype, "f32 or bf16: of the trained model", kNumberNames);
    visit({"save_steps"}, c.save_steps, "steps between two checkpoints; 0: at the end only", 0);
    visit({"eval_steps"}, c.eval_steps, "steps between two evaluations; 0: after every epoch", 0);
    visit({"eval_on_start"}, c.evaluate_first, "evaluate before the first step, too");
    visit({"logging_steps"}, c.logging_steps,
          "steps between two points in TensorBoard, and two lines of progress", 1);
    visit({"print_steps"}, c.print_steps,
          "steps between two lines of progress in a file; 0: those of logging_steps", 0);
    visit({"memory_line_steps"}, c.memory_line_steps, "steps between two memory lines; 0: none", 0);
    visit({"load_best_model_at_end"}, c.load_best,
          "the model of the best evaluation is saved in the end");
    visit({"early_stopping_patience"}, c.patience,
          "evaluations without a better one that end it; 0: none", 0);
    visit({"early_stopping_threshold"}, c.min_gain, "one that is better by less is not better");
    visit({"early_stopping_after"}, c.patience_steps, "steps before it may end that way", 0);
    visit({"on_nan"}, c.on_nan, "skip or stop when a loss is not a number", kOnNanNames);
    visit({"predict_with_generate"}, c.predict,
          "texts for the validation file: scored when it is evaluated, written in the end");
    visit({"num_beams", "generation_num_beams"}, c.beams, "of these texts", 1);
    visit({"generation_max_length", "val_max_target_length"}, c.generation_length,
          "tokens of these texts", 1);
    visit({"max_predict_samples"}, c.predictions, "how many of them; 0: all", 0);
    visit({"webhook_every_minutes"}, c.webhook_minutes,
          "minutes between two messages of progress to it; 0: none (30)");
  }
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
