#include <fmt/format.h>

#include <tuple>

#include "core/error.h"
#include "train/config/config_dialects.h"
#include "train/config/key_values.h"

namespace ballast::train {
namespace {

constexpr std::array<EnumName<OptimizerKind>, 4> kMusubiOptimizers = {{
    {"AdamW", OptimizerKind::adamw},
    {"AdamW8bit", OptimizerKind::adamw8bit},
    {"Adafactor", OptimizerKind::adafactor},
    {"StableAdamW", OptimizerKind::stableadamw},
}};

}  // namespace

OptimizerKind musubi_optimizer(const Setting& s) {
  if (const auto kind = optimizer_class(s.text())) return *kind;
  const std::string name = s.text().substr(s.text().rfind('.') + 1);
  const auto kind = parse_enum(kMusubiOptimizers, name);
  if (!kind) s.fail_value(one_of(kMusubiOptimizers, s.text()));
  return *kind;
}

void read_optimizer_args(const Setting& flag, OptimizerOptions& o) {
  const bool adafactor = o.kind == OptimizerKind::adafactor;
  const KeyValues args =
      adafactor ? KeyValues(flag, {"weight_decay", "eps", "scale_parameter", "relative_step",
                                   "warmup_init", "clip_threshold", "decay_rate"})
                : KeyValues(flag, {"weight_decay", "eps", "betas"});
  o.weight_decay = args.number("weight_decay", 0).value_or(o.weight_decay);
  if (adafactor) {
    o.scale_parameter = args.boolean("scale_parameter").value_or(o.scale_parameter);
    o.relative_step = args.boolean("relative_step").value_or(o.relative_step);
    o.warmup_init = args.boolean("warmup_init").value_or(o.warmup_init);
    o.clip_threshold = args.number("clip_threshold", 1e-9).value_or(o.clip_threshold);
    o.decay_rate = args.number("decay_rate", -1).value_or(o.decay_rate);
    if (const auto eps = args.pair("eps")) std::tie(o.eps_rows, o.eps_scale) = *eps;
  } else {
    o.eps = args.number("eps", 0).value_or(o.eps);
    if (const auto betas = args.pair("betas")) std::tie(o.beta1, o.beta2) = *betas;
    const auto is_beta = [](double b) { return b >= 0 && b < 1; };
    if (!is_beta(o.beta1) || !is_beta(o.beta2)) args.fail_value("betas", "numbers from 0 to 1");
  }
}

void read_schedule_args(const Setting& flag, ScheduleOptions& o) {
  const bool given = !flag.name.empty();
  if (o.kind != ScheduleKind::piecewise_constant) {
    if (!given) return;
    fail(flag.code,
         fmt::format("{}: only piecewise_constant takes arguments; Python classes cannot be loaded",
                     flag.where));
  }
  constexpr std::string_view kKey = "step_rules=";
  const std::string rules = given ? flag.text() : "";
  const auto parsed = rules.starts_with(kKey) && flag.values.size() == 1
                          ? step_rules_of(std::string_view(rules).substr(kKey.size()))
                          : std::nullopt;
  if (!parsed) {
    fail(given ? flag.code : ErrorCode::usage,
         fmt::format("piecewise_constant needs --lr_scheduler_args step_rules=1:100,0.1:200,0.01"
                     "{}: factors with rising numbers of steps, then the last factor",
                     rules.empty() ? "" : fmt::format(", found {}", printable(rules))));
  }
  o.pieces = *parsed;
}

void check_warmup(const Setting* warmup, bool adafactor, TrainConfig& c) {
  const ScheduleOptions& s = c.schedule;
  if (!warmup || (s.warmup_steps == 0 && c.warmup_share.value_or(0) == 0)) return;
  if (s.kind == ScheduleKind::piecewise_constant && !adafactor) {
    c.notes.push_back(
        fmt::format("{}: the schedule piecewise_constant has no warm-up", warmup->where));
    return;
  }
  if (s.kind != ScheduleKind::constant && !adafactor) return;
  fail(warmup->code,
       fmt::format("{} {}: the schedule {} has no warm-up; musubi-tuner stops here, too",
                   warmup->where, printable(warmup->text(), 40),
                   adafactor ? "adafactor" : "constant"),
       {{"--lr_scheduler constant_with_warmup", "the rate rises, then stays"},
        {"leave out --lr_warmup_steps", "the rate is the same from the first step on"}});
}

}  // namespace ballast::train
