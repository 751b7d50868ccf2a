#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ballast::t5 {

inline constexpr const char* kAdapterConfigFile = "adapter_config.json";
inline constexpr std::int64_t kMaxAdapterRank = 4096;

// The adapter_config.json of PEFT.
struct AdapterConfig {
  std::int64_t rank = 8;  // PEFT's values for what a file leaves out
  double alpha = 8;
  bool root_scale = false;  // use_rslora: alpha / sqrt(rank), not alpha / rank
  double dropout = 0;
  std::vector<std::string> targets = {};  // last parts of module names
  std::string base_model = {};            // "": it does not say
};

bool is_adapter_folder(const std::string& folder);  // there is an adapter_config.json in it

// Fails with ErrorCode::input for what is no LoRA, or one whose factors mean something else (DoRA,
// ranks and alphas by pattern, biases).
AdapterConfig read_adapter_config(const std::string& folder);
std::string adapter_config_json(const AdapterConfig& config);

// ErrorCode::input: "path: what", with advice on what can be read.
[[noreturn]] void fail_adapter(const std::string& path, std::string_view what);

}  // namespace ballast::t5
