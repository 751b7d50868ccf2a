#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "train/config/config.h"
#include "train/config/enum_names.h"
#include "train/config/flags.h"
#include "train/config/read_config.h"
#include "train/config/seq2seq_config.h"

namespace ballast::train {

// One reader per trainer. `flags` are those of the command line.
TrainConfig read_diffusion_pipe(const TomlFile& file, std::span<const Setting> flags);
// `settings`: the keys of a file, if there is one, then flags. `source` is that file's path.
TrainConfig read_musubi(const std::string& source, std::span<const Setting> settings,
                        ConfigUse use);
TrainConfig read_flow_matching(std::span<const Setting> flags);

Seq2SeqConfig read_seq2seq(Seq2SeqDialect dialect, const std::string& source,
                           std::span<const Setting> settings);

// An optimizer's class as Python names it: bitsandbytes.optim.PagedAdamW8bit, torch.optim.AdamW.
std::optional<OptimizerKind> optimizer_class(std::string_view name);

// [optimizer] of diffusion-pipe, into c.optimizer and c.schedule; the adapter is known already.
void read_optimizer(const TomlTable& t, std::optional<double> constant_rate, TrainConfig& c);

// musubi-tuner's --optimizer_type: a name, or a class as Python names it, torch.optim.AdamW.
OptimizerKind musubi_optimizer(const Setting& s);
// --optimizer_args of an optimizer whose kind and defaults are known.
void read_optimizer_args(const Setting& flag, OptimizerOptions& o);
// --lr_scheduler_args: step_rules of piecewise_constant; flag may not have been given.
void read_schedule_args(const Setting& flag, ScheduleOptions& o);

// --lr_warmup_steps, where it was given, beside the schedule: `constant` and `adafactor` stop
// musubi-tuner with it, piecewise_constant ignores it.
void check_warmup(const Setting* warmup, bool adafactor, TrainConfig& c);

// [model] of a run that trains a VAE.
void read_vae_model(const TomlTable& t, const PathFinder& find_path, TrainConfig& c);

// [distill]; the adapter is known already, the optimizer is not.
void read_distill(const TomlTable& t, const PathFinder& find_path, TrainConfig& c);

// [preview]
void read_preview(const TomlTable& t, const PathFinder& find_path, TrainConfig& c);

// The fields of MachineOptions that every dialect and T5 take.
inline constexpr std::string_view kTrainerMachineFields[] = {
    "device", "non_deterministic", "verify_weights", "gpu", "ram", "disk", "policy"};

// Flags that every dialect takes. What they set may depend on what a dialect decides, so it waits
// for apply().
class CommonFlags {
 public:
  void declare(FlagTable& table);
  void apply(TrainConfig& c) const;

 private:
  std::vector<Setting> given_;
};

// Each dialect's table. Of the last three, to describe it only: nothing may be read with it.
// c: what flags change; nullptr: nothing is read.
void declare_diffusion_pipe(FlagTable& table, TrainConfig* c);
void describe_musubi(FlagTable& table);
// Flags of musubi-tuner that have no effect here, or cannot be had.
void declare_musubi_ignored(FlagTable& table);
void describe_flow_matching(FlagTable& table);
void describe_seq2seq(FlagTable& table);
// Flags of transformers' scripts and of the FLAN-T5 job that mean nothing here, or cannot be had.
void declare_seq2seq_ignored(FlagTable& table);

}  // namespace ballast::train
