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
    declare_fields(t);
    declare_files(t);
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

  void declare_fields(FlagTable& t);
  void declare_files(FlagTable& t);
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

void Seq2SeqReader::declare_fields(FlagTable& t) {
  const auto visit = [&](std::initializer_list<std::string_view> names, auto& to,
                         std::string_view help, const auto&... limit) {
    using Field = std::remove_cvref_t<decltype(to)>;
    if constexpr (std::is_same_v<Field, bool>) {
      for (const std::string_view name : names) truth(t, name, help, to);
    } else if constexpr ((std::is_integral_v<std::remove_cvref_t<decltype(limit)>> && ...) &&
                         sizeof...(limit) == 1) {
      using Count =
          std::conditional_t<std::is_same_v<Field, std::uint64_t>, std::uint64_t, std::int64_t>;
      add(t, names, help, [&to, least = (limit + ...)](const Setting& s) {
        to = static_cast<Count>(at_least(s, least));
      });
    } else {
      for (const std::string_view name : names) t.add(name, to, help, limit...);
    }
  };
  Seq2SeqConfig::fields(c_, visit);
}

void Seq2SeqReader::declare_files(FlagTable& t) {
  add(t, {"min_quality"}, "records with a lower quality_score are dropped (0.6)",
      [this](const Setting& s) { c_.tokens.texts.min_quality = s.number(); });
  for (const auto name : {"resume", "resume_from_checkpoint"}) {
    t.add(name, Takes::maybe_one, "continue from a folder checkpoint-N, or from the newest",
          [this](const Setting& s) {
            const bool newest = s.values.empty() || equal_ignoring_case(s.values[0], "true");
            if (!s.off) c_.resume = newest ? "" : s.text();
          });
  }
  add(t, {"max_steps"}, "stop after so many optimizer steps", [this](const Setting& s) {
    if (s.text() != "-1") c_.max_steps = at_least(s, 1);  // transformers' word for none
  });
  add(t, {"dropout"}, "instead of the model's own", [this](const Setting& s) {
    c_.dropout = s.number();
    if (*c_.dropout < 0 || *c_.dropout >= 1) s.fail_value("a number from 0 to 1");
  });
}

void Seq2SeqReader::declare_optimizer(FlagTable& t) {
  for (const auto name : {"optim", "optimizer"}) {
    t.add(name, optim_, "adamw, adamw_bnb_8bit, adafactor, adamw_optimi, stable_adamw or sgd",
          kOptimNames);
  }
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
  add(t, {"lr_scheduler_type"}, "linear, cosine, constant, constant_with_warmup, ...",
      [this](const Setting& s) {
        const auto kind = parse_enum(kScheduleNames, s.text());
        if (!kind) s.fail_value("a schedule such as linear, cosine or constant");
        c_.schedule = *kind;
      });
  add(t, {"warmup_ratio"}, "the same as a share of all steps", [this](const Setting& s) {
    c_.warmup_share = s.number();
    c_.max_warmup = std::int64_t{1} << 40;
    if (c_.warmup_share < 0 || c_.warmup_share > 1) s.fail_value("a number from 0 to 1");
  });
  t.add("bf16", Takes::maybe_one, "the same as --weights bf16", [this](const Setting& s) {
    if (truth_of(s)) c_.weights = WeightFormat::bf16;
  });
  t.add("rounding", rounding_, "of bf16 weights: nearest (an f32 master), kahan or stochastic",
        kRoundingNames);
  t.add("state_dtype", state_dtype_, "f32 or bf16: AdamW's moments", kNumberNames);
}

void Seq2SeqReader::declare_cadences(FlagTable& t) {
  add(t, {"save_total_limit", "keep_checkpoints"}, "checkpoints that stay on disk (3)",
      [this](const Setting& s) {
        c_.keep_checkpoints = static_cast<int>(std::min<std::int64_t>(at_least(s, 1), 1'000'000));
      });
  t.add("save_strategy", save_strategy_, "steps, epoch or no");
  t.add("eval_strategy", eval_strategy_, "steps, epoch or no");
  t.add("evaluation_strategy", eval_strategy_, "the same as --eval_strategy");
  add(t, {"discord_webhook", "webhook"},
      "address that is told of start, progress, stop and trouble", [this](const Setting& s) {
        c_.webhook = s.text();
        if (c_.webhook.starts_with("https://") || c_.webhook.starts_with("http://")) return;
        fail(s.code, fmt::format("{}: expected an address that begins with https://", s.where));
      });
}

void Seq2SeqReader::declare_memory(FlagTable& t) {
  t.add(c_.memory, kTrainerMachineFields);
  for (const auto name : {"use_cpu", "no_cuda"}) {
    t.add(name, Takes::maybe_one, "the same as --device cpu", [this](const Setting& s) {
      if (truth_of(s)) c_.memory.device = DeviceChoice::cpu;
    });
  }
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
