#include <fmt/format.h>

#include "train/config/config_dialects.h"
#include "train/config/enum_names.h"

namespace ballast::train {
namespace {

using Takes = FlagTable::Takes;

std::int64_t integer_of(const Setting& s, std::int64_t least) {
  const std::int64_t value = s.integer();
  if (value < least) s.fail_value(fmt::format("at least {}", least));
  return value;
}

}  // namespace

void CommonFlags::declare(FlagTable& table) {
  using Set = void (*)(TrainConfig&, const Setting&);
  const auto later = [&](std::string_view name, Takes takes, std::string_view help, Set set) {
    table.add(name, takes, help, [this, set](const Setting& s) {
      changes_.push_back([set, s](TrainConfig& c) { set(c, s); });
    });
  };
  const auto toggle = [&](std::string_view name, std::string_view help, bool TrainConfig::*field) {
    table.add(name, Takes::nothing, help, [this, field](const Setting& s) {
      changes_.push_back([field, on = !s.off](TrainConfig& c) { c.*field = on; });
    });
  };
  using C = TrainConfig;
  using S = Setting;
  later("device", Takes::one, "auto (a GPU where there is one), cpu or cuda", [](C& c, const S& s) {
    const auto value = parse_enum(kDeviceNames, s.text());
    if (!value) s.fail_value(one_of(kDeviceNames, s.text()));
    c.memory.device = *value;
  });
  later("non_deterministic", Takes::nothing, "faster; not bit-reproducible",
        [](C& c, const S& s) { c.memory.deterministic = s.off; });
  // The word of [memory], in files whose keys are flags.
  later("deterministic", Takes::nothing, "the same input gives the same bits (default)",
        [](C& c, const S& s) { c.memory.deterministic = !s.off; });
  later("verify_weights", Takes::one, kVerifyHelp, [](C& c, const S& s) {
    const auto value = parse_enum(kVerifyNames, s.text());
    if (!value) s.fail_value(one_of(kVerifyNames, s.text()));
    c.memory.verify_weights = *value;
  });
  later("fp8_matmul", Takes::nothing, "products with frozen matrices in fp8, where a GPU has it",
        [](C& c, const S& s) { c.memory.fp8_matmul = !s.off; });
  later("gpu", Takes::one, "GPU memory Ballast may use, for example 24GB",
        [](C& c, const S& s) { c.memory.gpu = s.size(); });
  later("ram", Takes::one, "RAM, pinned memory included",
        [](C& c, const S& s) { c.memory.ram = s.size(); });
  later("disk", Takes::one, "space for streamed weights and optimizer state",
        [](C& c, const S& s) { c.memory.disk = s.size(); });
  later("policy", Takes::one, "auto, or a policy's name", [](C& c, const S& s) {
    if (const auto fault = policy_fault(s.text())) s.fail_value(*fault);
    c.memory.policy = s.text();
  });
  later("stream_blocks", Takes::one, "blocks whose weights are streamed",
        [](C& c, const S& s) { c.memory.stream_blocks = integer_of(s, 0); });
  later("max_steps", Takes::one, "stop after so many optimizer steps",
        [](C& c, const S& s) { c.max_steps = integer_of(s, 1); });
  later("seed", Takes::one, "of noise, timesteps, order and initial weights",
        [](C& c, const S& s) { c.seed = static_cast<std::uint64_t>(integer_of(s, 0)); });
  later("output_dir", Takes::one, "where runs are written",
        [](C& c, const S& s) { c.output_dir = s.text(); });
  later("experts", Takes::one, "one or both of an A14B folder", [](C& c, const S& s) {
    const auto value = parse_enum(kExpertsNames, s.text());
    if (!value) s.fail_value(one_of(kExpertsNames, s.text()));
    c.model.experts = *value;
  });
  later("on_nan", Takes::one, "stop or skip when a loss is not a number", [](C& c, const S& s) {
    const auto value = parse_enum(kOnNanNames, s.text());
    if (!value) s.fail_value(one_of(kOnNanNames, s.text()));
    c.on_nan = *value;
  });
  later("lora_format", Takes::one, "comfy, kohya or peft: names inside LoRA files",
        [](C& c, const S& s) {
          const auto value = parse_enum(kLoraFormatNames, s.text());
          if (!value) s.fail_value(one_of(kLoraFormatNames, s.text()));
          c.lora_format = *value;
        });
  later("rounding", Takes::one, "nearest, kahan or stochastic: how bf16 weights take updates",
        [](C& c, const S& s) {
          const auto value = parse_enum(kRoundingNames, s.text());
          if (!value) s.fail_value(one_of(kRoundingNames, s.text()));
          c.optimizer.rounding = *value;
        });
  later("ema_decay", Takes::one, "keep a moving average of the trained weights, for example 0.99",
        [](C& c, const S& s) {
          const double decay = s.number();
          if (decay <= 0 || decay >= 1) s.fail_value("a number between 0 and 1");
          c.optimizer.ema_decay = decay;
        });
  later("keep_checkpoints", Takes::one, "how many checkpoints stay on disk", [](C& c, const S& s) {
    const std::int64_t count = integer_of(s, 1);
    if (count > 1'000'000) s.fail_value("at most 1000000");
    c.keep_checkpoints = static_cast<int>(count);
  });
  later("memory_line_steps", Takes::one, "steps between two memory lines; 0: none",
        [](C& c, const S& s) { c.memory_line_steps = integer_of(s, 0); });
  later("webhook_every_minutes", Takes::one,
        "minutes between two messages of progress to a webhook; 0: none (30)",
        [](C& c, const S& s) {
          c.webhook_minutes = s.number();
          if (c.webhook_minutes < 0) s.fail_value("at least 0");
        });
  const Set resume = [](C& c, const S& s) {
    if (!s.off) c.resume = s.values.empty() ? "" : s.values.front();
  };
  later("resume", Takes::maybe_one, "continue the newest run in output_dir, or that one", resume);
  later("resume_from_checkpoint", Takes::maybe_one, "the same as --resume", resume);
  toggle("reset_dataloader", "on resume begin the epoch again", &TrainConfig::reset_dataloader);
  toggle("reset_optimizer", "on resume forget the optimizer's state",
         &TrainConfig::reset_optimizer);
  toggle("reset_optimizer_params", "on resume take rate, betas and decay from the config",
         &TrainConfig::reset_optimizer_params);
  toggle("regenerate_cache", "build all caches again", &TrainConfig::regenerate_cache);
  toggle("trust_cache", "use caches without comparing fingerprints", &TrainConfig::trust_cache);
  toggle("cache_only", "build caches and stop", &TrainConfig::cache_only);
  toggle("require_cache", "fail where something is not encoded yet, instead of encoding it first",
         &TrainConfig::require_cache);
  toggle("i_know_what_i_am_doing", "allow more than three resolutions",
         &TrainConfig::allow_many_resolutions);
  ignore_launcher_flags(table);
  for (const auto name : {"master_port", "local_rank", "num_cpu_threads_per_process",
                          "deepspeed_config", "gpu_ids", "main_process_port"}) {
    table.ignore(name, Takes::one, kLauncherOption);
  }
  table.ignore("deepspeed", Takes::nothing, kLauncherOption);
}

void CommonFlags::apply(TrainConfig& c) const {
  for (const auto& change : changes_) change(c);
}

}  // namespace ballast::train
