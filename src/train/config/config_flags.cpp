#include "train/config/config_dialects.h"

namespace ballast::train {
namespace {

using Takes = FlagTable::Takes;

void declare_common(FlagTable& t, TrainConfig& c) {
  t.add(c.memory, kTrainerMachineFields);
  // The word of [memory], in files whose keys are flags.
  t.add("deterministic", c.memory.deterministic, "the same input gives the same bits (default)");
  t.add_fields(c);
}

}  // namespace

void CommonFlags::declare(FlagTable& table) {
  TrainConfig none;
  FlagTable flags(&none.notes);
  declare_common(flags, none);
  table.add_later(flags, given_);
  ignore_launcher_flags(table);
  for (const auto name : {"master_port", "local_rank", "num_cpu_threads_per_process",
                          "deepspeed_config", "gpu_ids", "main_process_port"}) {
    table.ignore(name, Takes::one, kLauncherOption);
  }
  table.ignore("deepspeed", Takes::nothing, kLauncherOption);
}

void CommonFlags::apply(TrainConfig& c) const {
  FlagTable flags(&c.notes);
  declare_common(flags, c);
  flags.read(given_);
}

}  // namespace ballast::train
