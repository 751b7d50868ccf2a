#pragma once

#include <span>
#include <string>
#include <vector>

#include "io/weight_files.h"
#include "models/t5/adapter_config.h"
#include "models/t5/adapters.h"
#include "plan/runner.h"

namespace ballast::t5 {

// A folder with an adapter of T5 as PEFT reads and writes it:
//   adapter_model.safetensors  base_model.model.<module>.lora_A.weight [r, K], .lora_B.weight
//   adapter_config.json        rank, alpha, targets, which model it belongs to

inline constexpr const char* kAdapterFile = "adapter_model.safetensors";

// "encoder.block.0.layer.0.SelfAttention.q.lora_A.weight" in the file.
inline std::string adapter_tensor_name(const std::string& name) {
  return "base_model.model." + name;
}

// An adapter that is there, headers read and checked.
class LoraFile {
 public:
  // Fails with ErrorCode::input, the file and the tensor, for what does not fit the model.
  static LoraFile open(const std::string& folder, const Config& model);

  const AdapterConfig& config() const { return config_; }
  // What a job is told; `strength` multiplies what the adapter adds.
  LoraOptions options(double strength = 1) const;
  // The factors into a job that was recorded so. Where ranks differ the smaller are filled with
  // zeros.
  void fill(std::span<const AdapterIo> adapters, Runner& runner) const;
  Bytes reading_bytes() const;  // that fill() takes for a while

 private:
  struct Module {
    std::string name;
    const WeightTensor* a = nullptr;
    const WeightTensor* b = nullptr;
    std::int64_t rank = 0;
  };
  LoraFile(WeightFiles checkpoint, AdapterConfig config)
      : checkpoint_(std::move(checkpoint)), config_(std::move(config)) {}
  double scale_of(std::int64_t rank) const;

  WeightFiles checkpoint_;
  AdapterConfig config_;
  std::vector<Module> modules_;  // by name
  std::int64_t rank_ = 0;        // the largest
};

}  // namespace ballast::t5
