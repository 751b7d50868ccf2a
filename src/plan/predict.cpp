#include "plan/predict.h"

#include <algorithm>

#include "core/to_size.h"

namespace ballast {
namespace {

// What is added to each second in which both ways of the link are in use: an H200 moves 101 GB/s
// where its two ways alone make 110.7.
double crowding(const MachineProfile& p) {
  constexpr double kUnknown = 0.096;
  if (p.both_ways_bandwidth <= 0) return p.device == Device::cuda ? kUnknown : 0;
  return std::max(0.0, (p.upload_bandwidth + p.download_bandwidth) / p.both_ways_bandwidth - 1);
}

// What a copy over a GPU's link takes beside its bytes (H200). One that waits for another lane goes
// on some time after that is done: 441 of 33 MB, each for what was made of the one before, took 13
// ms longer than one of as many bytes. One behind another has less to wait for: 1,026 of 80 KB to
// 10 MB took 11 ms longer.
double copy_seconds(const MachineProfile& p, bool waits) {
  if (p.device != Device::cuda) return 0;
  return waits ? 20e-6 : 10e-6;
}

}  // namespace

PredictedTime predict(const ProgramSet& set, const MemoryPlan& plan, int program,
                      const MachineProfile& profile, Timeline* timeline) {
  const auto& code = set.programs[to_size(program)].instructions;
  const Waits& waits = plan.waits[to_size(program)];
  PredictedTime time;
  const auto index = [](Lane l) { return to_size(l); };
  const double crowded = crowding(profile);
  std::array<double, kLaneCount> free_at{}, began{};     // began: the last one of the lane
  std::array<std::vector<double>, kLaneCount> finished;  // by lane and count
  std::array<std::size_t, kLaneCount> last{};            // instruction of the lane
  if (timeline) timeline->instructions.assign(code.size(), {});
  for (std::size_t i = 0; i < code.size(); ++i) {
    const std::size_t lane = index(code[i].lane);
    double start = free_at[lane];
    for (std::uint32_t w = waits.begin[i]; w < waits.begin[i + 1]; ++w) {
      const Wait& wait = waits.all[w];
      start = std::max(start, finished[index(wait.lane)][wait.count - 1]);
    }
    if (code[i].lane == Lane::compute) time.exposed_stall += start - free_at[lane];
    double seconds = predicted_seconds(set, code[i], profile);
    if (code[i].lane == Lane::upload || code[i].lane == Lane::download) {
      seconds += copy_seconds(profile, start > free_at[lane]);
      // Together with the last one of the other way, which then takes longer as well.
      const std::size_t other = index(code[i].lane == Lane::upload ? Lane::download : Lane::upload);
      const double both = std::min(start + seconds, free_at[other]) - std::max(start, began[other]);
      if (both > 0) {
        seconds += both * crowded;
        free_at[other] += both * crowded;
        finished[other].back() = free_at[other];
        if (timeline) timeline->instructions[last[other]].end = free_at[other];
        time.busy[other] += both * crowded;
        time.seconds = std::max(time.seconds, free_at[other]);
      }
    }
    time.busy[lane] += seconds;
    began[lane] = start;
    last[lane] = i;
    free_at[lane] = start + seconds;
    finished[lane].push_back(free_at[lane]);
    if (timeline) timeline->instructions[i] = {start, free_at[lane]};
    time.seconds = std::max(time.seconds, free_at[lane]);
  }
  return time;
}

}  // namespace ballast
