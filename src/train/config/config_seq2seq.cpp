#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "train/config/config_dialects.h"
#include "train/config/enum_names.h"
#include "train/config/seq2seq_config.h"

namespace ballast::train {
namespace {

using Takes = FlagTable::Takes;

constexpr std::array<EnumName<WeightFormat>, 4> kWeightNames = {{{"f32", WeightFormat::f32},
                                                                 {"float32", WeightFormat::f32},
                                                                 {"bf16", WeightFormat::bf16},
                                                                 {"bfloat16", WeightFormat::bf16}}};
constexpr std::array<EnumName<DType>, 4> kNumberWords = {{{"f32", DType::f32},
                                                          {"float32", DType::f32},
                                                          {"bf16", DType::bf16},
                                                          {"bfloat16", DType::bf16}}};
constexpr std::array<EnumName<LossMean>, 2> kMeanNames = {
    {{"tokens", LossMean::tokens}, {"micro_batches", LossMean::micro_batches}}};

// Names of `optim`: transformers' and our own.
struct Optim {
  OptimizerKind kind;
  bool paged = false;
};
constexpr std::array<EnumName<Optim>, 15> kOptimNames = {{
    {"adamw", {OptimizerKind::adamw}},
    {"adamw_torch", {OptimizerKind::adamw}},
    {"adamw_torch_fused", {OptimizerKind::adamw}},
    {"adamw_hf", {OptimizerKind::adamw}},
    {"adamw_bnb_8bit", {OptimizerKind::adamw8bit}},
    {"adamw_8bit", {OptimizerKind::adamw8bit}},
    {"adamw8bit", {OptimizerKind::adamw8bit}},
    {"paged_adamw_8bit", {OptimizerKind::adamw8bit, true}},
    {"paged_adamw_32bit", {OptimizerKind::adamw, true}},
    {"paged_adamw", {OptimizerKind::adamw, true}},
    {"adafactor", {OptimizerKind::adafactor}},
    {"adamw_optimi", {OptimizerKind::adamw_optimi}},
    {"stable_adamw", {OptimizerKind::stableadamw}},
    {"stableadamw", {OptimizerKind::stableadamw}},
    {"sgd", {OptimizerKind::sgd}},
}};

template <class T, std::size_t N>
T word_of(const Setting& s, const std::array<EnumName<T>, N>& words) {
  const auto value = parse_enum(words, s.text());
  if (!value) s.fail_value(one_of(words, s.text()));
  return *value;
}

// --flag, --flag True, flag = false: as argparse and TOML have it.
bool truth_of(const Setting& s) {
  if (s.off) return false;
  if (s.values.empty() || equal_ignoring_case(s.text(), "true") || s.text() == "1") return true;
  if (!equal_ignoring_case(s.text(), "false") && s.text() != "0") s.fail_value("true or false");
  return false;
}

class Seq2SeqReader {
 public:
  explicit Seq2SeqReader(Seq2SeqDialect dialect) : table_(&c_.notes) {
    c_.dialect = dialect;
    c_.tokens.max_source = 1024, c_.tokens.max_target = 128;
    c_.optimizer.weight_decay = 0;
    if (dialect == Seq2SeqDialect::transformers) return;
    c_.tokens.max_source = 256, c_.tokens.max_target = 512;
    c_.loss_mean = LossMean::micro_batches;
    c_.warmup_share = 0.1, c_.max_warmup = 1000;
    c_.optimizer.weight_decay = 0.01;
    c_.weights = WeightFormat::bf16;
    c_.save_steps = 1000;
    c_.print_steps = 50;
    c_.patience = 3, c_.patience_steps = 5000, c_.patience_epochs = 3;
  }

  void declare(FlagTable& t) {
    declare_files(t);
    declare_data(t);
    declare_steps(t);
    declare_optimizer(t);
    declare_cadences(t);
    declare_memory(t);
    declare_seq2seq_adapter(t, c_.lora, alpha_);
    declare_best(t);
    declare_seq2seq_ignored(t);
  }
  Seq2SeqConfig read(std::string source, std::span<const Setting> settings);

 private:
  using Set = std::function<void(const Setting&)>;
  void add(FlagTable& t, std::initializer_list<std::string_view> names, std::string_view help,
           const Set& set) {
    for (const std::string_view name : names) t.add(name, Takes::one, help, set);
  }
  void text(FlagTable& t, std::initializer_list<std::string_view> names, std::string_view help,
            std::string& to) {
    add(t, names, help, [&to](const Setting& s) { to = s.text(); });
  }
  void count(FlagTable& t, std::initializer_list<std::string_view> names, std::string_view help,
             std::int64_t& to, std::int64_t least) {
    add(t, names, help, [&to, least](const Setting& s) { to = at_least(s, least); });
  }
  void truth(FlagTable& t, std::string_view name, std::string_view help, bool& to) {
    t.add(name, Takes::maybe_one, help, [&to](const Setting& s) { to = truth_of(s); });
  }
  static std::int64_t at_least(const Setting& s, std::int64_t least) {
    // transformers' counts may be written as 3.0.
    const double value = s.number();
    if (value != std::floor(value) || value < static_cast<double>(least) || value > 1e15) {
      s.fail_value(fmt::format("a whole number of at least {}", least));
    }
    return static_cast<std::int64_t>(value);
  }

  void declare_files(FlagTable& t);
  void declare_data(FlagTable& t);
  void declare_steps(FlagTable& t);
  void declare_optimizer(FlagTable& t);
  void declare_cadences(FlagTable& t);
  void declare_memory(FlagTable& t);
  void declare_best(FlagTable& t);
  void settle_optimizer();
  void settle_best();
  void require_files() const;

  Seq2SeqConfig c_;
  FlagTable table_;
  std::optional<Optim> optim_;
  std::optional<double> beta1_, beta2_, eps_, decay_, ema_;
  std::optional<UpdateRounding> rounding_;
  std::optional<DType> state_dtype_;
  bool adafactor_ = false;
  std::optional<double> alpha_;
  std::optional<bool> greater_;
  std::string save_strategy_ = "steps", eval_strategy_;
};

void Seq2SeqReader::declare_files(FlagTable& t) {
  text(t, {"pretrained_model", "model_name_or_path"}, "the model: a folder as Hugging Face has it",
       c_.model);
  text(t, {"model_output", "output_dir"}, "where checkpoints and the trained model go",
       c_.output_dir);
  text(t, {"tokenizer", "tokenizer_name"}, "where the model's folder has none", c_.tokenizer);
  text(t, {"train_file"}, "texts to train with: JSON Lines or CSV", c_.train_file);
  text(t, {"validation_file"}, "texts to evaluate with", c_.validation_file);
  text(t, {"test_file"}, "texts to predict for at the end, instead of those", c_.test_file);
  for (const auto name : {"resume", "resume_from_checkpoint"}) {
    t.add(name, Takes::maybe_one, "continue from a folder checkpoint-N, or from the newest",
          [this](const Setting& s) {
            const bool newest = s.values.empty() || equal_ignoring_case(s.values[0], "true");
            if (!s.off) c_.resume = newest ? "" : s.text();
          });
  }
  truth(t, "overwrite_output_dir", "begin anew although there are checkpoints", c_.overwrite);
}

void Seq2SeqReader::declare_data(FlagTable& t) {
  text(t, {"text_column"}, "of the source", c_.tokens.texts.source_column);
  text(t, {"summary_column", "target_column"}, "of the target", c_.tokens.texts.target_column);
  text(t, {"source_prefix"}, "put before every source", c_.tokens.texts.source_prefix);
  add(t, {"min_quality"}, "records with a lower quality_score are dropped (0.6)",
      [this](const Setting& s) { c_.tokens.texts.min_quality = s.number(); });
  count(t, {"max_source_length", "max_input_length"}, "tokens of a source; the rest is cut off",
        c_.tokens.max_source, 1);
  count(t, {"max_target_length"}, "tokens of a target", c_.tokens.max_target, 1);
  count(t, {"max_train_samples"}, "no more than so many of the train file", c_.max_train_samples,
        0);
  count(t, {"max_eval_samples"}, "the same of the validation file", c_.max_eval_samples, 0);
  truth(t, "pad_to_max_length", "every batch as long as the longest", c_.pad_to_max);
  count(t, {"pad_to_multiple_of"}, "lengths of batches are multiples of this", c_.pad_multiple, 1);
  truth(t, "group_by_length", "samples of a step are about as long as each other",
        c_.group_by_length);
  count(t, {"dataloader_num_workers", "preprocessing_num_workers"},
        "threads that tokenise; 0: one for every processor", c_.workers, 0);
}

void Seq2SeqReader::declare_steps(FlagTable& t) {
  count(t, {"epochs", "num_train_epochs"}, "(3)", c_.epochs, 1);
  add(t, {"max_steps"}, "stop after so many optimizer steps", [this](const Setting& s) {
    if (s.text() != "-1") c_.max_steps = at_least(s, 1);  // transformers' word for none
  });
  count(t, {"batch_size", "per_device_train_batch_size"}, "samples of a micro-batch (8)",
        c_.batch_size, 1);
  count(t, {"per_device_eval_batch_size"}, "the same of evaluation (8)", c_.eval_batch_size, 1);
  count(t, {"gradient_accumulation_steps"}, "micro-batches of a step", c_.accumulation, 1);
  count(t, {"micro_batches_per_visit"},
        "that share a visit of every block; 0: where weights stream, as many as pay (0)",
        c_.micro_batches_per_visit, 0);
  add(t, {"loss_mean"}, "over tokens of a step, or micro_batches, then over those",
      [this](const Setting& s) { c_.loss_mean = word_of(s, kMeanNames); });
  add(t, {"seed"}, "of order and dropout (42)",
      [this](const Setting& s) { c_.seed = static_cast<std::uint64_t>(at_least(s, 0)); });
  add(t, {"dropout"}, "instead of the model's own", [this](const Setting& s) {
    c_.dropout = s.number();
    if (*c_.dropout < 0 || *c_.dropout >= 1) s.fail_value("a number from 0 to 1");
  });
}

void Seq2SeqReader::declare_optimizer(FlagTable& t) {
  add(t, {"optim", "optimizer"},
      "adamw, adamw_bnb_8bit, adafactor, adamw_optimi, stable_adamw or sgd",
      [this](const Setting& s) { optim_ = word_of(s, kOptimNames); });
  truth(t, "adafactor", "the same as --optim adafactor", adafactor_);
  const auto number = [&](std::string_view name, std::string_view help, std::optional<double>& to,
                          double most) {
    add(t, {name}, help, [&to, most](const Setting& s) {
      to = s.number();
      if (*to < 0 || *to > most) s.fail_value(fmt::format("0 to {:g}", most));
    });
  };
  number("learning_rate", "the highest one (by the model's name, or 5e-5)", c_.learning_rate, 1e3);
  number("weight_decay", "of AdamW (0.01 of a fine-tune job, else 0)", decay_, 1e3);
  number("adam_beta1", "(0.9)", beta1_, 0.9999999);
  number("adam_beta2", "(0.999)", beta2_, 0.9999999);
  number("adam_epsilon", "(1e-8)", eps_, 1);
  number("ema_decay", "keep a moving average of the weights; it is what is saved", ema_, 0.9999999);
  t.add("max_grad_norm", c_.max_grad_norm, "gradients are clipped to this norm; 0: never (1)");
  add(t, {"lr_scheduler_type"}, "linear, cosine, constant, constant_with_warmup, ...",
      [this](const Setting& s) {
        const auto kind = find_schedule(s.text());
        if (!kind) s.fail_value("a schedule such as linear, cosine or constant");
        c_.schedule = *kind;
      });
  add(t, {"warmup_steps"}, "of the learning rate",
      [this](const Setting& s) { c_.warmup_steps = at_least(s, 0); });
  add(t, {"warmup_ratio"}, "the same as a share of all steps", [this](const Setting& s) {
    c_.warmup_share = s.number();
    c_.max_warmup = std::int64_t{1} << 40;
    if (c_.warmup_share < 0 || c_.warmup_share > 1) s.fail_value("a number from 0 to 1");
  });
  add(t, {"weights"}, "f32 or bf16: what is computed with",
      [this](const Setting& s) { c_.weights = word_of(s, kWeightNames); });
  t.add("bf16", Takes::maybe_one, "the same as --weights bf16", [this](const Setting& s) {
    if (truth_of(s)) c_.weights = WeightFormat::bf16;
  });
  add(t, {"rounding"}, "of bf16 weights: nearest (an f32 master), kahan or stochastic",
      [this](const Setting& s) { rounding_ = word_of(s, kRoundingNames); });
  add(t, {"state_dtype"}, "f32 or bf16: AdamW's moments",
      [this](const Setting& s) { state_dtype_ = word_of(s, kNumberWords); });
  add(t, {"gradient_dtype"}, "f32 or bf16: gradients of matrices",
      [this](const Setting& s) { c_.gradients = word_of(s, kNumberWords); });
  add(t, {"save_dtype"}, "f32 or bf16: of the trained model",
      [this](const Setting& s) { c_.save_dtype = word_of(s, kNumberWords); });
}

void Seq2SeqReader::declare_cadences(FlagTable& t) {
  count(t, {"save_steps"}, "steps between two checkpoints; 0: at the end only", c_.save_steps, 0);
  add(t, {"save_total_limit", "keep_checkpoints"}, "checkpoints that stay on disk (3)",
      [this](const Setting& s) {
        c_.keep_checkpoints = static_cast<int>(std::min<std::int64_t>(at_least(s, 1), 1'000'000));
      });
  text(t, {"save_strategy"}, "steps, epoch or no", save_strategy_);
  text(t, {"eval_strategy", "evaluation_strategy"}, "steps, epoch or no", eval_strategy_);
  count(t, {"eval_steps"}, "steps between two evaluations; 0: after every epoch", c_.eval_steps, 0);
  truth(t, "eval_on_start", "evaluate before the first step, too", c_.evaluate_first);
  count(t, {"logging_steps"}, "steps between two points in TensorBoard, and two lines of progress",
        c_.logging_steps, 1);
  count(t, {"print_steps"},
        "steps between two lines of progress in a file; 0: those of logging_steps", c_.print_steps,
        0);
  count(t, {"memory_line_steps"}, "steps between two memory lines; 0: none", c_.memory_line_steps,
        0);
  count(t, {"early_stopping_patience"}, "evaluations without a better one that end it; 0: none",
        c_.patience, 0);
  t.add("early_stopping_threshold", c_.min_gain, "one that is better by less is not better");
  count(t, {"early_stopping_after"}, "steps before it may end that way", c_.patience_steps, 0);
  add(t, {"on_nan"}, "skip or stop when a loss is not a number",
      [this](const Setting& s) { c_.on_nan = word_of(s, kOnNanNames); });
  truth(t, "predict_with_generate",
        "texts for the validation file: scored when it is evaluated, written in the end",
        c_.predict);
  count(t, {"num_beams", "generation_num_beams"}, "of these texts", c_.beams, 1);
  count(t, {"generation_max_length", "val_max_target_length"}, "tokens of these texts",
        c_.generation_length, 1);
  count(t, {"max_predict_samples"}, "how many of them; 0: all", c_.predictions, 0);
  add(t, {"discord_webhook", "webhook"},
      "address that is told of start, progress, stop and trouble", [this](const Setting& s) {
        c_.webhook = s.text();
        if (c_.webhook.starts_with("https://") || c_.webhook.starts_with("http://")) return;
        fail(s.code, fmt::format("{}: expected an address that begins with https://", s.where));
      });
  t.add("webhook_every_minutes", c_.webhook_minutes,
        "minutes between two messages of progress to it; 0: none (30)");
}

void Seq2SeqReader::declare_memory(FlagTable& t) {
  add(t, {"device"}, "auto (a GPU where there is one), cpu or cuda",
      [this](const Setting& s) { c_.memory.device = word_of(s, kDeviceNames); });
  for (const auto name : {"use_cpu", "no_cuda"}) {
    t.add(name, Takes::maybe_one, "the same as --device cpu", [this](const Setting& s) {
      if (truth_of(s)) c_.memory.device = DeviceChoice::cpu;
    });
  }
  t.add("non_deterministic", Takes::nothing, "faster; not bit-reproducible",
        [this](const Setting& s) { c_.memory.deterministic = s.off; });
  add(t, {"verify_weights"}, kVerifyHelp,
      [this](const Setting& s) { c_.memory.verify_weights = word_of(s, kVerifyNames); });
  add(t, {"gpu"}, "GPU memory Ballast may use, for example 24GB",
      [this](const Setting& s) { c_.memory.gpu = s.size(); });
  add(t, {"ram"}, "RAM, pinned memory included",
      [this](const Setting& s) { c_.memory.ram = s.size(); });
  add(t, {"disk"}, "space for streamed weights and optimizer state",
      [this](const Setting& s) { c_.memory.disk = s.size(); });
  add(t, {"policy"}, "auto, or a policy's name", [this](const Setting& s) {
    if (const auto fault = policy_fault(s.text())) s.fail_value(*fault);
    c_.memory.policy = s.text();
  });
  t.add("gradient_checkpointing", Takes::maybe_one, "compute activations again in backward",
        [this](const Setting& s) {
          c_.memory.checkpointing = truth_of(s) ? Checkpointing::recompute : Checkpointing::off;
        });
  t.add("plan_only", c_.plan_only, "print the plan and do nothing");
}

void Seq2SeqReader::declare_best(FlagTable& t) {
  add(t, {"metric_for_best_model"},
      "loss, rouge1, rouge2, rougeL or rougeLsum: what tells the best evaluation (loss)",
      [this](const Setting& s) {
        std::string_view word = s.text();
        if (word.starts_with("eval_")) word.remove_prefix(5);
        for (int m = 0; m <= static_cast<int>(EvalMetric::rouge_lsum); ++m) {
          if (word == name_of(static_cast<EvalMetric>(m))) {
            c_.best_metric = static_cast<EvalMetric>(m);
            return;
          }
        }
        s.fail_value("loss, rouge1, rouge2, rougeL or rougeLsum");
      });
  t.add("greater_is_better", Takes::maybe_one, "of that metric (of all but loss)",
        [this](const Setting& s) { greater_ = truth_of(s); });
  truth(t, "load_best_model_at_end", "the model of the best evaluation is saved in the end",
        c_.load_best);
}

void Seq2SeqReader::settle_best() {
  const bool texts = c_.best_metric != EvalMetric::loss;
  c_.greater_is_better = greater_.value_or(texts);
  const auto need = [&](bool there, std::string_view what, std::string_view flag) {
    if (there) return;
    fail(c_.source.empty() ? ErrorCode::usage : ErrorCode::input,
         fmt::format("metric_for_best_model = {}, load_best_model_at_end = {}: there is no {}",
                     name_of(c_.best_metric), c_.load_best, what),
         {{fmt::format("--{}", flag), "gives it"}});
  };
  need(!texts || c_.predict, "text to score", "predict_with_generate");
  need(!(texts || c_.load_best) || !c_.validation_file.empty(), "validation file",
       "validation_file FILE");
  need(!c_.load_best || c_.eval_steps >= 0, "evaluation", "eval_strategy epoch");
}

void Seq2SeqReader::settle_optimizer() {
  OptimizerOptions& o = c_.optimizer;
  const double decay = o.weight_decay;
  const Optim optim =
      optim_.value_or(Optim{adafactor_ ? OptimizerKind::adafactor : OptimizerKind::adamw});
  if (optim.paged) c_.notes.push_back("optim: the plan decides where optimizer state lives");
  const bool note = c_.dialect == Seq2SeqDialect::fine_tune;
  // Adapters are f32, whatever the weights are.
  const DType parameter =
      note && c_.weights == WeightFormat::bf16 && !c_.lora ? DType::bf16 : DType::f32;
  o = optimizer_defaults(optim.kind, parameter);
  if (optim.kind == OptimizerKind::adafactor) {
    // The usual fine-tuning setting: a given rate, no scale of its own.
    o.scale_parameter = o.relative_step = false;
    if (!c_.learning_rate) c_.learning_rate = 1e-3;
  } else if (optim.kind != OptimizerKind::adamw_optimi &&
             optim.kind != OptimizerKind::stableadamw) {
    o.weight_decay = decay;
  }
  // bf16 weights that are rounded to the nearest lose small updates; this costs no memory.
  if (parameter == DType::bf16 && o.rounding == UpdateRounding::nearest) {
    o.rounding = UpdateRounding::stochastic;
    if (!rounding_) {
      c_.notes.push_back(
          "bf16 weights take updates with stochastic rounding: to the nearest number most would be "
          "lost (--rounding kahan, or nearest with an f32 master)");
    }
  }
  o.beta1 = beta1_.value_or(o.beta1);
  o.beta2 = beta2_.value_or(o.beta2);
  o.eps = eps_.value_or(o.eps);
  o.weight_decay = decay_.value_or(o.weight_decay);
  if (!c_.lora) o.rounding = rounding_.value_or(o.rounding);
  o.state_dtype = state_dtype_.value_or(o.state_dtype);
  if (ema_ && *ema_ > 0) o.ema_decay = ema_;
}

void Seq2SeqReader::require_files() const {
  const auto need = [&](bool there, std::string_view what, std::string_view flag) {
    if (there) return;
    fail(c_.source.empty() ? ErrorCode::usage : ErrorCode::input,
         fmt::format("there is no {}", what), {{fmt::format("--{} PATH", flag), "names it"}});
  };
  const bool note = c_.dialect == Seq2SeqDialect::fine_tune;
  need(!c_.output_dir.empty(), "folder for the result", note ? "model-output" : "output_dir");
  need(!c_.model.empty() || c_.resume, "model to train",
       note ? "pretrained-model" : "model_name_or_path");
  need(!c_.train_file.empty(), "text to train with", note ? "train-file" : "train_file");
  need(!c_.predict || !c_.validation_file.empty() || !c_.test_file.empty(), "text to predict for",
       "validation_file");
}

Seq2SeqConfig Seq2SeqReader::read(std::string source, std::span<const Setting> settings) {
  c_.source = std::move(source);
  declare(table_);
  table_.read(settings);
  settle_optimizer();
  if (c_.lora) {
    c_.lora->alpha = alpha_ ? static_cast<float>(*alpha_) : static_cast<float>(c_.lora->rank);
  }
  const auto strategy = [&](const std::string& word, const char* flag) {
    if (word == "steps" || word == "epoch" || word == "no" || word.empty()) return word;
    fail(ErrorCode::usage,
         fmt::format("--{} {}: expected steps, epoch or no", flag, printable(word)));
  };
  if (strategy(save_strategy_, "save_strategy") == "no") c_.save_steps = 0;
  if (save_strategy_ == "epoch") c_.save_steps = -1;
  if (strategy(eval_strategy_, "eval_strategy") == "no") c_.eval_steps = -1;
  if (eval_strategy_ == "epoch") c_.eval_steps = 0;
  if (eval_strategy_ == "steps" && c_.eval_steps == 0) c_.eval_steps = 500;
  c_.micro_batches_per_visit = std::min(c_.micro_batches_per_visit, c_.accumulation);
  require_files();
  settle_best();
  return std::move(c_);
}

}  // namespace

void describe_seq2seq(FlagTable& table) {
  Seq2SeqReader(Seq2SeqDialect::transformers).declare(table);
}

Seq2SeqConfig read_seq2seq(Seq2SeqDialect dialect, const std::string& source,
                           std::span<const Setting> settings) {
  return Seq2SeqReader(dialect).read(source, settings);
}

}  // namespace ballast::train
