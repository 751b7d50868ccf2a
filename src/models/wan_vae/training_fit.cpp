#include "models/wan_vae/training_fit.h"

namespace ballast::wan_vae {
namespace {

constexpr const char* kKept = "keeps inputs of all units";
constexpr const char* kAgain = "keeps inputs of stages, recomputes the rest";

PlannedTraining plan_with(const TrainingRequest& r, bool checkpointing) {
  ProgramSet set;
  set.backend = r.backend;
  set.executable = false;
  TrainingJob job = r.job;
  job.checkpointing = checkpointing;
  const Training training(set, std::move(job), r.encoder, r.decoder);
  PlannedTraining p;
  p.checkpointing = checkpointing;
  p.plan = plan_memory(set);
  NeededMemory needed = needed_memory(set, p.plan, r.profile, r.other_lines);
  p.lines = std::move(needed.lines);
  p.device = needed.device;
  p.host = needed.host;
  if (r.profile.gemm_flops <= 0) return p;  // without a profile nothing is predicted
  for (std::size_t i = 0; i < set.programs.size(); ++i) {
    p.times.push_back(predict(set, p.plan, static_cast<int>(i), r.profile));
  }
  const auto seconds = [&](std::string_view program) {
    return p.times[static_cast<std::size_t>(set.program_index(program))].seconds;
  };
  for (const ClipIo& io : training.io().clips) p.clip_seconds.push_back(seconds(io.program));
  p.step_seconds = seconds("zero_gradients") + seconds("grad_norm") + seconds("update");
  return p;
}

}  // namespace

std::string policy_text(const PlannedTraining& p) { return p.checkpointing ? kAgain : kKept; }

std::variant<PlannedTraining, Refusal> fit_training(const TrainingRequest& r) {
  std::optional<PlannedTraining> last;
  for (const bool checkpointing : {false, true}) {
    if (r.checkpointing && *r.checkpointing != checkpointing) continue;
    last = plan_with(r, checkpointing);
    if (shortages(last->plan, last->device, last->host, r.budget).empty()) return *std::move(last);
  }
  double seconds = last->step_seconds;
  if (!last->clip_seconds.empty()) seconds += last->clip_seconds.front();
  return Refusal{.policy = policy_text(*last),
                 .needed = {last->device, last->host, Bytes{}},
                 .shortages = shortages(last->plan, last->device, last->host, r.budget),
                 .seconds_per_step = seconds};
}

}  // namespace ballast::wan_vae
