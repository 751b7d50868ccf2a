#pragma once

#include <string>
#include <vector>

#include "fit/request.h"
#include "models/wan_vae/training.h"

namespace ballast::wan_vae {

// A training of both networks, or of the decoder. Of a policy only its activations mean something.
class TrainingFitJob final : public fit::Job {
 public:
  TrainingFitJob(TrainingJob job, std::vector<StoredUnit> encoder, std::vector<StoredUnit> decoder);

  TrainingJob training;  // its checkpointing is chosen
  std::vector<StoredUnit> encoder, decoder;

  std::unique_ptr<fit::Job> clone() const override {
    return std::make_unique<TrainingFitJob>(*this);
  }
  fit::Recording record(const MemoryPolicy& policy, const Backend& backend) const override;

  // A trained unit each.
  std::span<const WeightGroup> groups() const override {
    return std::span(groups_).subspan(training.train_encoder ? 0 : encoder.size());
  }
  fit::Trained trained() const override { return fit::Trained::weights; }
  bool records_update() const override { return true; }
  const OptimizerOptions& optimizer() const override { return training.optimizer; }
  std::int64_t blocks() const override { return 0; }
  std::size_t kinds() const override { return training.clips.size(); }

  std::vector<std::vector<MemoryPolicy>> candidates(const fit::Switches&) const override;
  std::vector<MemoryPolicy> leanest() const override;
  bool recordings_are_short() const override { return true; }

 private:
  std::vector<WeightGroup> groups_;  // of both
};

// For requests that leave nothing open.
MemoryPolicy training_policy(bool checkpointing);
inline bool checkpoints(const MemoryPolicy& p) { return p.activations != Activations::kept; }
// "keeps inputs of all units"
std::string training_text(const MemoryPolicy& policy);

}  // namespace ballast::wan_vae
