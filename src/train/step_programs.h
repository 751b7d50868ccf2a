#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "fit/job.h"
#include "plan/runner.h"

namespace ballast::train {

// The programs that steps run, by the list that predictions add up (fit::PlannedRun::steps). A task
// runs its steps through this: whatever is not on the list, or what follows the gradients more
// often than the list says, is an internal error, since the predicted step would be another one.
class StepPrograms {
 public:
  StepPrograms() = default;  // no list: nothing was predicted, and anything may run
  explicit StepPrograms(const std::vector<std::vector<fit::StepProgram>>& kinds);

  void begin_step() { runs_.clear(); }
  void run(Runner& runner, std::string_view program, const StepValues& values = {});

 private:
  static constexpr double kAnyNumber = -1;
  std::map<std::string, double, std::less<>>
      most_;  // runs in a step, by program of any kind of step
  std::map<std::string, double, std::less<>> runs_;  // of the step in progress
};

}  // namespace ballast::train
