#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "io/json_reader.h"
#include "models/wan/lora_module.h"

namespace ballast::wan {

inline constexpr std::string_view kPeftMetadata = "lora_adapter_metadata";

// What PEFT stores beside the factors: adapter_config.json, or the metadata entry
// lora_adapter_metadata, whose keys begin with "transformer.".
struct PeftConfig {
  std::optional<double> alpha;
  bool rank_stabilised = false;                 // scale = alpha / sqrt(rank)
  std::map<std::string, double> alpha_pattern;  // by module or end of a module's name

  // The alpha for which scale = alpha / rank. names: how the module may be called; nullopt: the
  // config says nothing.
  std::optional<double> alpha_of(std::span<const std::string> names, std::int64_t rank) const;
};

// Fails with ErrorCode::input. A pattern with more regular expression in it than a name is refused.
PeftConfig read_peft_config(JsonSource source);

// The config of modules whose scale is 1 (alpha = rank), as JSON; names[i] is what the file calls
// modules[i]. prefix stands in front of every key.
std::string peft_config_json(std::span<const LoraModule> modules,
                             std::span<const std::string> names, double dropout,
                             std::string_view prefix);

}  // namespace ballast::wan
