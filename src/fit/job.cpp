#include "fit/job.h"

#include <algorithm>

namespace ballast::fit {

void Recording::add(std::vector<StepProgram>& step, const std::string& name, double runs,
                    bool computes) const {
  if (std::ranges::find(set.programs, name, &Program::name) == set.programs.end()) return;
  step.push_back({.name = name, .runs = runs, .computes = computes});
}

const OptimizerOptions& Job::optimizer() const {
  static const OptimizerOptions none;
  return none;
}

std::vector<MemoryPolicy> Job::last_resort(bool) const { return leanest(); }

std::vector<MemoryPolicy> Job::every_policy(int) const { return {}; }

}  // namespace ballast::fit
