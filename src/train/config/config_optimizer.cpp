#include <fmt/format.h>

#include <cmath>

#include "train/config/config_dialects.h"
#include "train/config/enum_names.h"
#include "train/config/toml_checks.h"

namespace ballast::train {
namespace {

constexpr std::array<EnumName<OptimizerKind>, 8> kTypes = {{
    {"adamw", OptimizerKind::adamw},
    {"adamw_optimi", OptimizerKind::adamw_optimi},
    {"stableadamw", OptimizerKind::stableadamw},
    {"AdamW8bit", OptimizerKind::adamw8bit},
    {"AdamW8bitKahan", OptimizerKind::adamw8bit_kahan},
    {"adafactor", OptimizerKind::adafactor},
    {"sgd", OptimizerKind::sgd},
    {"offload", OptimizerKind::adamw},
}};
// Classes as Python names them. A paged one differs in where its state is, and that is planned.
struct OptimizerClass {
  std::string_view module, name;
  OptimizerKind kind;
};
constexpr OptimizerClass kClasses[] = {
    {"bitsandbytes.optim", "AdamW8bit", OptimizerKind::adamw8bit},
    {"bitsandbytes.optim", "AdamW", OptimizerKind::adamw},
    {"bitsandbytes.optim", "AdamW32bit", OptimizerKind::adamw},
    {"bitsandbytes.optim", "SGD", OptimizerKind::sgd},
    {"torch.optim", "AdamW", OptimizerKind::adamw},
    {"torch.optim", "SGD", OptimizerKind::sgd},
    {"transformers", "Adafactor", OptimizerKind::adafactor},
    {"transformers.optimization", "Adafactor", OptimizerKind::adafactor},
    {"optimi", "AdamW", OptimizerKind::adamw_optimi},
    {"optimi", "StableAdamW", OptimizerKind::stableadamw},
};
constexpr std::string_view kFused = "a detail of PyTorch's implementation";
constexpr std::string_view kOfOptimi = "only adamw_optimi and stableadamw have it";
constexpr IgnoredKey kIgnoredByOptimizers[] = {
    {"foreach", kFused},
    {"fused", kFused},
    {"capturable", kFused},
    {"differentiable", kFused},
    {"triton", kFused},
    {"is_paged", "the plan decides where optimizer state lives"},
    // What another type leaves behind when it is replaced.
    {"kahan_sum", kOfOptimi},
    {"decouple_lr", kOfOptimi},
    {"max_lr", kOfOptimi},
};

bool is_adam(OptimizerKind k) { return k != OptimizerKind::adafactor && k != OptimizerKind::sgd; }

// Keys that change the update in ways that are not offered; their defaults are accepted.
void refuse_true(const TomlTable& t, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    if (t.boolean(key, false)) t.fail_at(key, "is not supported, expected false");
  }
}

void read_betas(const TomlTable& t, TrainConfig& c) {
  OptimizerOptions& o = c.optimizer;
  if (t.has("betas")) {
    const std::vector<double> betas = t.numbers("betas");
    const auto is_beta = [](double b) { return b >= 0 && b < 1; };
    if (betas.size() != 2 || !is_beta(betas[0]) || !is_beta(betas[1])) {
      t.fail_at("betas", "expected two numbers from 0 to 1, such as [0.9, 0.99]");
    }
    o.beta1 = betas[0];
    o.beta2 = betas[1];
  }
  (void)t.find("betas");
  if (const auto half_life = number_from(t, "beta2_half_life", 1e-9, kMaxNumber)) {
    o.beta2 = std::pow(0.5, static_cast<double>(global_batch(c)) / *half_life);
  }
}

void read_adafactor(const TomlTable& t, OptimizerOptions& o) {
  o.scale_parameter = t.boolean("scale_parameter", o.scale_parameter);
  o.relative_step = t.boolean("relative_step", o.relative_step);
  o.warmup_init = t.boolean("warmup_init", o.warmup_init);
  o.clip_threshold = number_from(t, "clip_threshold", 1e-9, kMaxNumber).value_or(1);
  o.decay_rate = number_from(t, "decay_rate", -1, 0).value_or(o.decay_rate);
  if (t.has("eps")) {
    const std::vector<double> eps = t.numbers("eps");
    if (eps.size() != 2 || eps[0] < 0 || eps[1] < 0) {
      t.fail_at("eps", "expected two numbers, such as [1e-30, 1e-3]");
    }
    o.eps_rows = eps[0];
    o.eps_scale = eps[1];
  }
  (void)t.find("eps");
}

void note_without_effect(const TomlTable& t, std::string_view key, std::string_view why,
                         TrainConfig& c) {
  c.notes.push_back(
      fmt::format("{}.{} (line {}) has no effect: {}", t.name(), key, t.line_of(key), why));
}

void read_precision(const TomlTable& t, TrainConfig& c) {
  OptimizerOptions& o = c.optimizer;
  if (const auto rounding = word_from(t, "rounding", kRoundingNames)) {
    o.rounding = *rounding;
    o.kahan_unasked = false;
    if (o.kind == OptimizerKind::adamw8bit_kahan) {
      note_without_effect(t, "rounding", "AdamW8bitKahan carries what is rounded away", c);
    } else if (trained_dtype(c) == DType::f32) {
      note_without_effect(t, "rounding", "the trained weights are float32", c);
    }
  }
  if (const auto dtype = word_from(t, "state_dtype", kDTypeNames)) {
    if (*dtype != DType::f32 && *dtype != DType::bf16) {
      t.fail_at("state_dtype", "expected float32 or bfloat16");
    }
    o.state_dtype = *dtype;
    if (is_optimi(o.kind)) {
      note_without_effect(t, "state_dtype", "optimi keeps moments as it keeps the weights", c);
    } else if (o.kind != OptimizerKind::adamw && o.kind != OptimizerKind::sgd) {
      note_without_effect(t, "state_dtype", "this optimizer has a format of its own", c);
    }
  }
}

// decouple_lr: weights lose lr / max_lr weight_decay of themselves, max_lr being lr unless said.
void read_decoupled_decay(const TomlTable& t, TrainConfig& c) {
  const bool decoupled = t.boolean("decouple_lr", false);
  const auto most = number_from(t, "max_lr", 1e-30, kMaxNumber);
  const double rate = most.value_or(c.schedule.learning_rate);
  if (decoupled && rate > 0) c.optimizer.weight_decay /= rate;
  if (most && !decoupled) note_without_effect(t, "max_lr", "decouple_lr is not set", c);
}

}  // namespace

std::optional<OptimizerKind> optimizer_class(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  std::string_view module = dot == std::string_view::npos ? "" : name.substr(0, dot);
  std::string_view plain = name.substr(dot + 1);
  if (module == "bnb.optim" || module == "bitsandbytes.optim.adamw") module = "bitsandbytes.optim";
  const bool paged = plain.starts_with("Paged");
  if (paged) {
    if (module.empty()) module = "bitsandbytes.optim";
    if (module != "bitsandbytes.optim") return std::nullopt;
    plain.remove_prefix(5);
  }
  for (const OptimizerClass& c : kClasses) {
    if (c.module == module && c.name == plain && !(paged && c.kind == OptimizerKind::sgd)) {
      return c.kind;
    }
  }
  return std::nullopt;
}

void read_optimizer(const TomlTable& t, std::optional<double> constant_rate, TrainConfig& c) {
  const std::string type = t.require_string("type");
  auto kind = parse_enum(kTypes, type);
  if (!kind) kind = optimizer_class(type);
  if (!kind) {
    t.fail_at("type", fmt::format("the optimizer \"{}\" is not supported, expected {}",
                                  printable(type, 60), one_of(kTypes, type)));
  }
  OptimizerOptions& o = c.optimizer;
  o = optimizer_defaults(*kind, trained_dtype(c));
  const bool paged = type.find("Paged") != std::string::npos;
  if (equal_ignoring_case(type, "offload") || paged) {
    c.notes.push_back(fmt::format(
        "{}.type (line {}): {}; the plan decides where its state lives and is updated", t.name(),
        t.line_of("type"), paged ? type.substr(type.find("Paged") + 5) : "AdamW"));
  }
  if (is_adam(*kind)) {
    read_betas(t, c);
    o.eps = number_from(t, "eps", 0, 1).value_or(o.eps);
    refuse_true(t, {"amsgrad", "maximize"});
  }
  switch (*kind) {
    case OptimizerKind::adamw_optimi:
    case OptimizerKind::stableadamw:
      if (const auto kahan = t.boolean("kahan_sum")) {
        o.rounding = *kahan ? UpdateRounding::kahan : UpdateRounding::nearest;
        o.kahan_unasked = *kahan;
      }
      break;
    case OptimizerKind::adamw8bit_kahan:
      o.stabilize = t.boolean("stabilize", false);
      break;
    case OptimizerKind::adafactor:
      read_adafactor(t, o);
      break;
    case OptimizerKind::sgd:
      o.momentum = number_from(t, "momentum", 0, 0.999999).value_or(0);
      refuse_true(t, {"nesterov", "maximize"});
      break;
    default:
      break;
  }
  const auto decay = number_from(t, "weight_decay", 0, kMaxNumber);
  o.weight_decay = decay.value_or(o.weight_decay);
  if (decay && *kind == OptimizerKind::adamw8bit_kahan) {
    c.notes.push_back(fmt::format(
        "{}.weight_decay (line {}): AdamW8bitKahan decays its compensation buffer, not the weights",
        t.name(), t.line_of("weight_decay")));
  }
  read_precision(t, c);
  if (const auto ema = number_from(t, "ema_decay", 0, 1)) {
    if (*ema <= 0 || *ema >= 1) t.fail_at("ema_decay", "expected a number between 0 and 1");
    o.ema_decay = ema;
  }
  if (t.boolean("gradient_release", false)) {
    c.max_grad_norm = 0;
    c.notes.push_back(
        fmt::format("{}.gradient_release (line {}): gradients are planned without it; clipping is "
                    "off, as there",
                    t.name(), t.line_of("gradient_release")));
  }
  const bool own_rate = *kind == OptimizerKind::adafactor && o.relative_step;
  const auto rate = number_from(t, "lr", 0, kMaxNumber);
  if (!rate && !constant_rate && !own_rate) (void)t.require_number("lr");
  c.schedule.learning_rate = constant_rate ? *constant_rate : rate.value_or(0);
  if (is_optimi(*kind)) read_decoupled_decay(t, c);
  t.finish(kIgnoredByOptimizers, c.notes);
}

}  // namespace ballast::train
