#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "train/config/config_dialects.h"
#include "train/config/enum_names.h"
#include "train/config/seq2seq_config.h"

namespace ballast::train {
namespace {

using Takes = FlagTable::Takes;

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

constexpr double kMaxBeta = 0.9999999;

// --flag, --flag True, flag = false: as argparse and TOML have it.
bool truth_of(const Setting& s) {
  if (s.off) return false;
  if (s.values.empty() || equal_ignoring_case(s.text(), "true") || s.text() == "1") return true;
  if (!equal_ignoring_case(s.text(), "false") && s.text() != "0") s.fail_value("true or false");
  return false;
}

// transformers' counts may be written as 3.0.
std::int64_t at_least(const Setting& s, std::int64_t least) {
  const double value = s.number();
  if (value != std::floor(value) || value < static_cast<double>(least) || value > 1e15) {
    s.fail_value(fmt::format("a whole number of at least {}", least));
  }
  return static_cast<std::int64_t>(value);
}

auto number_to(double most, std::string_view expected) {
  return number_where([most](double x) { return x >= 0 && x <= most; }, expected);
}
auto below_one(std::string_view expected) {
  return number_where([](double x) { return x >= 0 && x < 1; }, expected);
}

std::optional<std::string> resume_of(const Setting& s) {
  if (s.off) return std::nullopt;
  const bool newest = s.values.empty() || equal_ignoring_case(s.values[0], "true");
  return newest ? "" : s.text();
}

std::optional<std::int64_t> max_steps_of(const Setting& s) {
  if (s.text() == "-1") return std::nullopt;  // transformers' word for none
  return at_least(s, 1);
}

int kept_checkpoints_of(const Setting& s) {
  return static_cast<int>(std::min<std::int64_t>(at_least(s, 1), 1'000'000));
}

std::string webhook_of(const Setting& s) {
  const std::string& address = s.text();
  if (!address.starts_with("https://") && !address.starts_with("http://")) {
    s.fail_with("expected an address that begins with https://");  // without it: it is a secret
  }
  return address;
}

Checkpointing checkpointing_of(const Setting& s) {
  return truth_of(s) ? Checkpointing::recompute : Checkpointing::off;
}

EvalMetric metric_of(const Setting& s) {
  std::string_view word = s.text();
  if (word.starts_with("eval_")) word.remove_prefix(5);
  for (int m = 0; m <= static_cast<int>(EvalMetric::rouge_lsum); ++m) {
    if (word == name_of(static_cast<EvalMetric>(m))) return static_cast<EvalMetric>(m);
  }
  s.fail_value("loss, rouge1, rouge2, rougeL or rougeLsum");
}

bool is_lora(const Setting& s) {
  if (!equal_ignoring_case(s.text(), "lora")) s.fail_value("lora");
  return true;
}

// "q,v", "q v", ["q", "v"]
std::vector<std::string> lora_targets(const Setting& s) {
  std::vector<std::string> all;
  for (const std::string& text : s.values) {
    for (std::size_t at = 0; at <= text.size();) {
      const std::size_t end = std::min(text.find_first_of(", ", at), text.size());
      const std::string word = text.substr(at, end - at);
      at = end + 1;
      if (word.empty()) continue;
      if (word == "all" || word == "all-linear") return {};
      constexpr std::string_view kKnown[] = {"q", "k", "v", "o", "wi", "wi_0", "wi_1", "wo"};
      if (std::ranges::find(kKnown, word) == std::end(kKnown)) {
        s.fail_value("some of q, k, v, o, wi, wi_0, wi_1, wo, or all");
      }
      all.push_back(word);
    }
  }
  if (all.empty()) s.fail_value("some of q, k, v, o, wi, wo, or all");
  return all;
}

// Any of these flags asks for adapters.
struct AdapterFlags {
  bool lora = false;
  std::optional<std::int64_t> rank;
  std::optional<double> alpha, dropout;
  std::optional<std::vector<std::string>> targets;

  template <class Self, class Visit>
  static void fields(Self& a, Visit&& visit) {
    visit({"adapter_type"}, a.lora, "lora: train adapters instead of all weights", is_lora);
    visit({"lora_rank", "lora_r"}, a.rank, "train LoRA adapters of this rank (16)",
          integer_in(1, 1024, "a rank from 1 to 1024"));
    visit({"lora_alpha"}, a.alpha, "their scale is alpha / rank (alpha = rank)", &Setting::number);
    visit({"lora_dropout"}, a.dropout, "of what they read (0)", below_one("a number from 0 to 1"));
    visit({"lora_targets", "lora_target_modules"}, a.targets,
          "q, k, v, o, wi, wo: matrices with an adapter (all of them)", lora_targets, Takes::many);
  }

  std::optional<LoraOptions> options() const {
    if (!lora && !rank && !alpha && !dropout && !targets) return std::nullopt;
    LoraOptions o;
    o.rank = rank.value_or(o.rank);
    o.alpha = static_cast<float>(alpha.value_or(static_cast<double>(o.rank)));
    o.dropout = dropout.value_or(o.dropout);
    o.targets = targets.value_or(o.targets);
    return o;
  }
};

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

  // Flags with a reader of their own, and those that are settled when all are known.
  template <class Self, class Visit>
  static void fields(Self& r, Visit&& visit) {
    Seq2SeqConfig& c = r.c_;
    visit({"min_quality"}, c.tokens.texts.min_quality,
          "records with a lower quality_score are dropped (0.6)", &Setting::number);
    visit({"resume", "resume_from_checkpoint"}, c.resume,
          "continue from a folder checkpoint-N, or from the newest", resume_of, Takes::maybe_one);
    visit({"max_steps"}, c.max_steps, "stop after so many optimizer steps", max_steps_of);
    visit({"dropout"}, c.dropout, "instead of the model's own", below_one("a number from 0 to 1"));
    visit({"optim", "optimizer"}, r.optim_,
          "adamw, adamw_bnb_8bit, adafactor, adamw_optimi, stable_adamw or sgd", kOptimNames);
    visit({"adafactor"}, r.adafactor_, "the same as --optim adafactor");
    visit({"learning_rate"}, c.learning_rate, "the highest one (by the model's name, or 5e-5)",
          number_to(1e3, "0 to 1000"));
    visit({"weight_decay"}, r.decay_, "of AdamW (0.01 of a fine-tune job, else 0)",
          number_to(1e3, "0 to 1000"));
    visit({"adam_beta1"}, r.beta1_, "(0.9)", number_to(kMaxBeta, "0 to 1"));
    visit({"adam_beta2"}, r.beta2_, "(0.999)", number_to(kMaxBeta, "0 to 1"));
    visit({"adam_epsilon"}, r.eps_, "(1e-8)", number_to(1, "0 to 1"));
    visit({"ema_decay"}, r.ema_, "keep a moving average of the weights; it is what is saved",
          number_to(kMaxBeta, "0 to 1"));
    visit({"lr_scheduler_type"}, c.schedule, "linear, cosine, constant, constant_with_warmup, ...",
          kScheduleNames);
    visit({"warmup_ratio"}, r.warmup_ratio_, "the same as a share of all steps",
          number_to(1, "a number from 0 to 1"));
    visit({"rounding"}, r.rounding_,
          "of bf16 weights: nearest (an f32 master), kahan or stochastic", kRoundingNames);
    visit({"state_dtype"}, r.state_dtype_, "f32 or bf16: AdamW's moments", kNumberNames);
    visit({"save_total_limit", "keep_checkpoints"}, c.keep_checkpoints,
          "checkpoints that stay on disk (3)", kept_checkpoints_of);
    visit({"save_strategy"}, r.save_strategy_, "steps, epoch or no");
    visit({"eval_strategy"}, r.eval_strategy_, "steps, epoch or no");
    visit({"evaluation_strategy"}, r.eval_strategy_, "the same as --eval_strategy");
    visit({"discord_webhook", "webhook"}, c.webhook,
          "address that is told of start, progress, stop and trouble", webhook_of);
    visit({"gradient_checkpointing"}, c.memory.checkpointing,
          "compute activations again in backward", checkpointing_of, Takes::maybe_one);
    visit({"metric_for_best_model"}, c.best_metric,
          "loss, rouge1, rouge2, rougeL or rougeLsum: what tells the best evaluation (loss)",
          metric_of);
    visit({"greater_is_better"}, r.greater_, "of that metric (of all but loss)", truth_of,
          Takes::maybe_one);
  }

  void declare(FlagTable& t);
  Seq2SeqConfig read(std::string source, std::span<const Setting> settings);

 private:
  void settle_optimizer();
  void settle_best();
  void require_files() const;

  Seq2SeqConfig c_;
  FlagTable table_;
  std::optional<Optim> optim_;
  std::optional<double> beta1_, beta2_, eps_, decay_, ema_, warmup_ratio_;
  std::optional<UpdateRounding> rounding_;
  std::optional<DType> state_dtype_;
  bool adafactor_ = false;
  AdapterFlags adapter_;
  std::optional<bool> greater_;
  std::string save_strategy_ = "steps", eval_strategy_;
};

void Seq2SeqReader::declare(FlagTable& t) {
  const auto visit = [&](std::initializer_list<std::string_view> names, auto& to,
                         std::string_view help, const auto&... limit) {
    using Field = std::remove_cvref_t<decltype(to)>;
    for (const std::string_view name : names) {
      if constexpr (std::is_same_v<Field, bool> && sizeof...(limit) == 0) {
        t.add(name, to, help, truth_of, Takes::maybe_one);
      } else if constexpr ((std::is_integral_v<std::remove_cvref_t<decltype(limit)>> && ...) &&
                           sizeof...(limit) == 1) {
        using Count =
            std::conditional_t<std::is_same_v<Field, std::uint64_t>, std::uint64_t, std::int64_t>;
        t.add(name, to, help, [least = (limit + ...)](const Setting& s) {
          return static_cast<Count>(at_least(s, least));
        });
      } else {
        t.add(name, to, help, limit...);
      }
    }
  };
  Seq2SeqConfig::fields(c_, visit);
  fields(*this, visit);
  AdapterFlags::fields(adapter_, visit);
  t.add("bf16", Takes::maybe_one, "the same as --weights bf16", [this](const Setting& s) {
    if (truth_of(s)) c_.weights = WeightFormat::bf16;
  });
  t.add(c_.memory, kTrainerMachineFields);
  for (const auto name : {"use_cpu", "no_cuda"}) {
    t.add(name, Takes::maybe_one, "the same as --device cpu", [this](const Setting& s) {
      if (truth_of(s)) c_.memory.device = DeviceChoice::cpu;
    });
  }
  t.add("plan_only", c_.plan_only, "print the plan and do nothing");
  declare_seq2seq_ignored(t);
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
  const bool fine_tune = c_.dialect == Seq2SeqDialect::fine_tune;
  // Adapters are f32, whatever the weights are.
  const DType parameter =
      fine_tune && c_.weights == WeightFormat::bf16 && !c_.lora ? DType::bf16 : DType::f32;
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
  const bool fine_tune = c_.dialect == Seq2SeqDialect::fine_tune;
  need(!c_.output_dir.empty(), "folder for the result", fine_tune ? "model-output" : "output_dir");
  need(!c_.model.empty() || c_.resume, "model to train",
       fine_tune ? "pretrained-model" : "model_name_or_path");
  need(!c_.train_file.empty(), "text to train with", fine_tune ? "train-file" : "train_file");
  need(!c_.predict || !c_.validation_file.empty() || !c_.test_file.empty(), "text to predict for",
       "validation_file");
}

Seq2SeqConfig Seq2SeqReader::read(std::string source, std::span<const Setting> settings) {
  c_.source = std::move(source);
  declare(table_);
  table_.read(settings);
  c_.lora = adapter_.options();
  settle_optimizer();
  if (warmup_ratio_) c_.warmup_share = *warmup_ratio_, c_.max_warmup = std::int64_t{1} << 40;
  const auto strategy = [&](const std::string& word, const char* flag) {
    if (word == "steps" || word == "epoch" || word == "no" || word.empty()) return word;
    fail(ErrorCode::usage, "--{} {}: expected steps, epoch or no", flag, printable(word));
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
