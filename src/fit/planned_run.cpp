#include "fit/planned_run.h"

#include <algorithm>

#include "core/to_size.h"

namespace ballast::fit {

double PlannedRun::seconds_of(std::string_view program) const {
  for (std::size_t p = 0; p < set.programs.size(); ++p) {
    if (set.programs[p].name == program) return times[p].seconds;
  }
  return 0;
}

double PlannedRun::seconds_of_step(std::size_t kind) const {
  double sum = 0;
  for (const StepProgram& step : steps[kind]) sum += step.runs * seconds_of(step.name);
  return sum;
}

double PlannedRun::seconds_of_update() const {
  double sum = 0;
  for (const StepProgram& step : steps[0]) {
    if (!step.computes) sum += step.runs * seconds_of(step.name);
  }
  return sum;
}

const PredictedTime& PlannedRun::main_program() const {
  const auto longest = std::ranges::max_element(steps[0], {}, [&](const StepProgram& s) {
    return s.computes ? s.runs * seconds_of(s.name) : -1;
  });
  return times[to_size(set.program_index(longest->name))];
}

}  // namespace ballast::fit
