#include "train/step_programs.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace ballast::train {

StepPrograms::StepPrograms(const std::vector<std::vector<fit::StepProgram>>& kinds) {
  for (const std::vector<fit::StepProgram>& step : kinds) {
    for (const fit::StepProgram& p : step) {
      // Passes depend on the samples of a step; fewer than one run is an average over steps.
      const double most = p.computes || p.runs < 1 ? kAnyNumber : std::ceil(p.runs);
      const auto [known, is_new] = most_.emplace(p.name, most);
      if (!is_new && known->second != kAnyNumber) {
        known->second = most == kAnyNumber ? most : std::max(known->second, most);
      }
    }
  }
}

void StepPrograms::run(Runner& runner, std::string_view program, const StepValues& values) {
  if (!most_.empty()) {
    const auto listed = most_.find(program);
    check(listed != most_.end(), "a step runs {}, which its plan does not list", program);
    const double count = ++runs_[listed->first];
    check(listed->second == kAnyNumber || count <= listed->second,
          "a step runs {} {} times, its plan lists {}", program, count, listed->second);
  }
  runner.run(program, values);
}

}  // namespace ballast::train
