#include "plan/predict.h"

#include <algorithm>
#include <vector>

namespace ballast {

PredictedTime predict(const ProgramSet& set, const MemoryPlan& plan, int program,
                      const MachineProfile& profile) {
  const auto& code = set.programs[static_cast<std::size_t>(program)].instructions;
  const Waits& waits = plan.waits[static_cast<std::size_t>(program)];
  PredictedTime time;
  std::array<double, kLaneCount> free_at{};
  std::array<std::vector<double>, kLaneCount> finished;  // by lane and count
  for (std::size_t i = 0; i < code.size(); ++i) {
    const auto lane = static_cast<std::size_t>(code[i].lane);
    double start = free_at[lane];
    for (std::uint32_t w = waits.begin[i]; w < waits.begin[i + 1]; ++w) {
      const Wait& wait = waits.all[w];
      start = std::max(start, finished[static_cast<std::size_t>(wait.lane)][wait.count - 1]);
    }
    if (code[i].lane == Lane::compute) time.exposed_stall += start - free_at[lane];
    const double seconds = predicted_seconds(set, code[i], profile);
    time.busy[lane] += seconds;
    free_at[lane] = start + seconds;
    finished[lane].push_back(free_at[lane]);
    time.seconds = std::max(time.seconds, free_at[lane]);
  }
  return time;
}

}  // namespace ballast
