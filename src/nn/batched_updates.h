#pragma once

#include <vector>

#include "nn/optimizer.h"
#include "ops/adamw.h"
#include "ops/adamw_8bit.h"

namespace ballast {

// Steps of several tensors, recorded as few instructions where the optimizer has such: many tensors
// are so small that a GPU takes longer to begin and to end than to update them.
class BatchedUpdates {
 public:
  BatchedUpdates(ProgramBuilder& pb, const OptimizerOptions& o) : pb_(pb), options_(o) {}

  // Recorded now or by flush(), which comes at the latest when kMax were added. All have the same
  // factor.
  void add(const OptimizerStep& step);
  void flush();
  bool can_wait() const;  // false: add() records at once
  static constexpr std::size_t kMax = ops::kAdamWTensors;

 private:
  ProgramBuilder& pb_;
  const OptimizerOptions& options_;
  Buffer factor_;
  std::vector<std::vector<ops::AdamWBuffers>> groups_;  // of the same types
  std::vector<std::vector<ops::AdamW8bitBuffers>> groups_8bit_;
};

}  // namespace ballast
