#pragma once

#include <string>
#include <vector>

#include "core/bytes.h"
#include "models/wan/dit.h"
#include "models/wan/lora_read.h"
#include "plan/runner.h"

namespace ballast::infer {

// A LoRA that is applied while the model runs.
struct AppliedLora {
  const wan::LoraReader* lora = nullptr;
  double strength = 1;
  int expert = -1;  // 0 low noise, 1 high noise, -1: all there are
};

// Several LoRAs as the one adapter per layer that the transformer has: factors of a layer stand
// below and beside each other, strength (alpha / rank) is in them, and layers with fewer are filled
// with zeros.
//   sum of s_i up_i down_i = [s_1 up_1, s_2 up_2, 0] [down_1; down_2; 0]
//
// Fails with ErrorCode::input for LoRAs that hold more than factors of the blocks' linear layers:
// those can be merged.
class AdapterStack {
 public:
  // The readers must outlive it.
  AdapterStack(const wan::Config& model, std::vector<AppliedLora> loras, int experts);

  bool empty() const { return loras_.empty(); }
  // What the job is told: rank, alpha and which modules have no adapter.
  void apply(wan::DitJob& job) const;
  // Memory that fill() takes for a while.
  Bytes reading_bytes() const { return reading_; }
  // The factors, into a job that was recorded so.
  void fill(const wan::Dit& dit, Runner& runner) const;

 private:
  std::vector<AppliedLora> loras_;
  std::int64_t rank_ = 0;
  Bytes reading_;
  std::vector<std::string> excluded_;
};

}  // namespace ballast::infer
