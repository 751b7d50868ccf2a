#include "train/run/published_model.h"

#include "core/error.h"
#include "core/path_kind.h"
#include "models/wan/weights.h"
#include "train/run/model_choice.h"

namespace ballast::train {
namespace {

const std::string& named_model(const ModelConfig& m) {
  return m.transformer.empty() ? m.checkpoint : m.transformer;
}

// Which of two experts is trained, or that nothing says it.
std::string choice_note(const TrainConfig& c, const wan::Published& model, double boundary) {
  const double from = c.timesteps.min_t, to = c.timesteps.max_t;
  if (to <= boundary) {
    return fmt::format("t up to {} lies below the boundary {}: the low-noise expert", to, boundary);
  }
  if (from >= boundary) {
    return fmt::format("t from {} lies above the boundary {}: the high-noise expert", from,
                       boundary);
  }
  const std::string& path = c.model.checkpoint;
  const char *low = model.diffusers ? "transformer_2" : "low_noise_model",
             *high = model.diffusers ? "transformer" : "high_noise_model";
  return fmt::format(
      "the model has two experts of one shape; to train, write one of\n"
      "  transformer_path = '{0}/{1}'  # and min_t = 0.0, max_t = {3}\n"
      "  transformer_path = '{0}/{2}'  # and min_t = {3}, max_t = 1.0\n"
      "  experts = 'both'",
      path, low, high, boundary);
}

}  // namespace

std::optional<wan::Published> absent_model(const ModelConfig& m) {
  const std::string& named = named_model(m);
  if (named.empty() || path_exists(named)) return std::nullopt;
  return wan::find_published(named);
}

void require_downloaded(const ModelConfig& m) {
  if (const auto absent = absent_model(m)) fail_not_downloaded(named_model(m), absent->id);
}

Bytes published_bytes(const fit::Request& request) {
  Bytes sum;
  for (const std::vector<WeightGroup>& expert : wan::job_of(request).experts) {
    for (const WeightGroup& group : expert) {
      for (const StoredTensor& t : group.tensors) sum += Bytes{t.data.extent.bytes};
    }
  }
  return sum;
}

wan::Config plan_published(PreparedRun& run, const wan::Published& model) {
  const TrainConfig& c = run.config;
  const wan::Config& config = model.config;
  const bool both = c.model.experts == Experts::both || !c.model.high_noise_transformer.empty();
  if (both && config.experts < 2) {
    fail(ErrorCode::input, "experts = \"both\": {} has one transformer", named_model(c.model));
  }
  wan::job_of(run.request).experts.assign(both ? 2 : 1, planned_groups(config, model.stored));
  run.notes.push_back(
      fmt::format("{} is not on this machine: planned from its published sizes, weights in {}",
                  named_model(c.model), name_of(model.stored)));
  if (config.experts < 2) return config;
  run.boundary = c.model.boundary > 0        ? c.model.boundary
                 : config.conditioning() > 0 ? kBoundaryI2v
                                             : kBoundaryT2v;
  if (!both && model.id.inside.empty()) {
    run.notes.push_back(choice_note(c, model, run.boundary));
  }
  return config;
}

}  // namespace ballast::train
