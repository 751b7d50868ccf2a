#pragma once

#include <span>
#include <string>
#include <vector>

#include "train/config/config.h"
#include "train/config/flags.h"

namespace ballast::train {

// What a configuration is read for: caching needs no transformer and no place for runs.
enum class ConfigUse : std::uint8_t { train, cache };

// The run that a command line describes:
//   config.toml [flags]             a diffusion-pipe or musubi-tuner file; flags win
//   --dit FILE --dataset_config ... musubi-tuner's flags alone (also --config_file FILE)
//   --dataset_path FOLDER ...       the flow-matching trainer's flags
// What is wrong with a file is ErrorCode::input with its line, with a flag ErrorCode::usage.
// Nothing but the configuration is read: whether files exist is for those who open them.
TrainConfig read_config(std::span<const std::string> arguments, ConfigUse use = ConfigUse::train);
TrainConfig read_config(const std::string& path, std::span<const Setting> flags = {},
                        ConfigUse use = ConfigUse::train);

// Whether flags among them can only be those of a trainer.
bool names_a_run(std::span<const std::string> arguments);

// For --help: the flags that every run takes, and those of one trainer.
std::string common_flags_help();
std::string dialect_flags_help(Dialect dialect);
// All of them, for completions; flags of several trainers once.
std::vector<FlagInfo> trainer_flags();

}  // namespace ballast::train
