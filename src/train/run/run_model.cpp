#include "train/run/run_model.h"

#include "core/error.h"
#include "models/wan/recognise.h"
#include "models/wan/weights.h"
#include "train/run/model_choice.h"
#include "train/run/published_model.h"

namespace ballast::train {
namespace {

wan::Config open_model(PreparedRun& run, const ModelChoice& choice) {
  std::vector<std::string> paths = {choice.transformer};
  if (choice.experts == Experts::both) paths.push_back(choice.high_noise_transformer);
  std::optional<wan::Config> model;
  for (const std::string& path : paths) {
    const WeightFiles& file = run.checkpoints.emplace_back(WeightFiles::open(path));
    const wan::TensorMap names(file);
    const wan::Config config = recognised_config(file, names, path);
    require_task(run.config.model, config, path);
    if (model && (model->dim != config.dim || model->in_dim != config.in_dim)) {
      fail(ErrorCode::input, fmt::format("{} is {}, {} is {}: experts have one shape", paths[0],
                                         model->name, path, config.name));
    }
    model = config;
    if (run.config.method == Method::full && !run.config.student) {
      run.layout = layout_of(path, names.dialect(), choice.config_json);
    }
    wan::job_of(run.request).experts.push_back(weight_groups(*model, file, names));
  }
  return *model;
}

}  // namespace

wan::Config choose_model(PreparedRun& run, Purpose purpose) {
  const TrainConfig& c = run.config;
  if (purpose == Purpose::train) require_downloaded(c.model);
  if (const auto absent = absent_model(c.model)) return plan_published(run, *absent);
  const ModelDecision decision = resolve_model(c);
  ModelChoice choice;
  if (const auto* ambiguous = std::get_if<AmbiguousModel>(&decision)) {
    if (purpose == Purpose::train) choice = require_model(c);  // fails with both lines
    choice = ambiguous->low;
    run.notes.push_back(fmt::format(
        "the folder holds two experts of one shape; to train, write one of\n  {}\n  {}\n  "
        "experts = 'both'",
        ambiguous->low_line, ambiguous->high_line));
  } else {
    choice = std::get<ModelChoice>(decision);
  }
  if (!choice.explanation.empty()) run.notes.push_back(choice.explanation);
  run.boundary = c.model.boundary > 0 ? c.model.boundary : choice.boundary;
  return open_model(run, choice);
}

}  // namespace ballast::train
