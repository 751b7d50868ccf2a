#pragma once

#include <array>
#include <functional>

#include "models/wan/dit.h"
#include "plan/runner.h"
#include "train/run/prepared_run.h"
#include "train/timesteps.h"

namespace ballast::train {

inline constexpr std::array<double, 9> kEvalQuantiles = {0.1, 0.2, 0.3, 0.4, 0.5,
                                                         0.6, 0.7, 0.8, 0.9};

struct EvalLosses {
  std::array<double, kEvalQuantiles.size()> by_quantile{};
  double mean = 0;
};

// The mean loss over all samples of the set at each quantile of the timestep distribution. The same
// noise every time, so that losses of different steps can be compared; training's random numbers
// are not touched. use_expert(e) brings that expert's weights.
EvalLosses evaluate_set(const PreparedRun& run, const wan::Dit& dit, Runner& runner,
                        const EvalSet& set, const std::function<void(int)>& use_expert);

}  // namespace ballast::train
