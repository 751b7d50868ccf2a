#include "train/config/dmd2_options.h"

#include "infer/sampler.h"
#include "models/wan/dit.h"

namespace ballast::train {

std::vector<float> sigmas_of(const Dmd2Options& options) {
  infer::Schedule schedule = infer::make_schedule({.solver = infer::Solver::euler,
                                                   .schedule = infer::SigmaSchedule::listed,
                                                   .steps = std::ssize(options.steps),
                                                   .shift = options.shift,
                                                   .listed = options.steps});
  schedule.sigmas.pop_back();  // the end
  return std::move(schedule.sigmas);
}

wan::DistilPrograms programs_of(const Dmd2Options& options) {
  const bool simulated = options.rollout == Dmd2Options::Rollout::simulated;
  return {.guided = options.guided(),
          .from_data = !simulated,
          .student_share = 1.0 / static_cast<double>(options.every),
          // Rollouts end at every step alike.
          .rollout_answers = simulated ? (static_cast<double>(options.steps.size()) + 1) / 2 : 1};
}

}  // namespace ballast::train
