#include "models/wan_vae/training_fit_job.h"

namespace ballast::wan_vae {

TrainingFitJob::TrainingFitJob(TrainingJob job, std::vector<StoredUnit> encoder_units,
                               std::vector<StoredUnit> decoder_units)
    : training(std::move(job)),
      encoder(std::move(encoder_units)),
      decoder(std::move(decoder_units)) {
  for (const auto* units : {&encoder, &decoder}) {
    for (const StoredUnit& u : *units) {
      WeightGroup& g = groups_.emplace_back();
      for (const StoredBytes& data : u) {
        g.tensors.push_back({.name = "", .data = data, .scale = {}});
      }
    }
  }
}

fit::Recording TrainingFitJob::record(const MemoryPolicy& policy, const Backend& backend) const {
  fit::Recording r(policy, backend);
  TrainingJob job = training;
  job.checkpointing = checkpoints(policy);
  const Training model(r.set, std::move(job), encoder, decoder);
  for (const ClipIo& io : model.io().clips) {
    r.steps.push_back({{.name = "zero_gradients", .runs = 1, .computes = false},
                       {.name = io.program},
                       {.name = "grad_norm", .runs = 1, .computes = false},
                       {.name = "update", .runs = 1, .computes = false}});
  }
  return r;
}

std::vector<std::vector<MemoryPolicy>> TrainingFitJob::candidates(const fit::Switches&) const {
  return {{training_policy(false)}, {training_policy(true)}};
}

std::vector<MemoryPolicy> TrainingFitJob::leanest() const { return {training_policy(true)}; }

MemoryPolicy training_policy(bool checkpointing) {
  MemoryPolicy p;
  if (checkpointing) p.activations = Activations::recomputed;
  p.name = training_text(p);
  return p;
}

std::string training_text(const MemoryPolicy& policy) {
  return checkpoints(policy) ? "keeps inputs of stages, recomputes the rest"
                             : "keeps inputs of all units";
}

}  // namespace ballast::wan_vae
