#include "app/bench/kernel_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/to_size.h"
#include "plan/predict.h"

namespace ballast {

KernelTimes kernels_of(Runner& runner, KernelTimes*& collect, const std::function<void()>& step) {
  KernelTimes times;
  runner.time_instructions(true);
  collect = &times;
  step();
  collect = nullptr;
  runner.time_instructions(false);
  return times;
}

KernelTimes::Sum& KernelTimes::of(std::string_view instruction) {
  return sums_[std::string(instruction.substr(instruction.rfind('.') + 1))];
}

void KernelTimes::add(const Runner& runner) {
  for (const auto& [name, seconds] : runner.compute_times()) {
    Sum& sum = of(name);
    sum.seconds += seconds;
    ++sum.count;
  }
}

void KernelTimes::add(const Runner& runner, const ProgramSet& set, int program,
                      const MachineProfile& profile) {
  add(runner);
  for (const Instruction& i : set.programs[to_size(program)].instructions) {
    if (i.lane == Lane::compute) of(i.name).predicted += predicted_seconds(set, i, profile);
  }
}

std::string KernelTimes::table() const {
  std::vector<std::pair<std::string, Sum>> rows(sums_.begin(), sums_.end());
  std::ranges::sort(rows, std::greater{}, [](const auto& row) { return row.second.seconds; });
  std::string text;
  for (const auto& [name, k] : rows) {
    text += fmt::format("  {:<28} {:9.2f} ms {:6d} x", name, k.seconds * 1e3, k.count);
    if (k.predicted > 0) text += fmt::format("  predicted {:9.2f} ms", k.predicted * 1e3);
    text += '\n';
  }
  return text;
}

nlohmann::ordered_json KernelTimes::json() const {
  nlohmann::ordered_json all = nlohmann::ordered_json::object();
  for (const auto& [name, k] : sums_) {
    all[name] = {{"ms", k.seconds * 1e3}, {"count", k.count}};
    if (k.predicted > 0) all[name]["predicted_ms"] = k.predicted * 1e3;
  }
  return all;
}

void ProgramTimes::add(const std::string& program, double seconds, double stalled) {
  Sum& sum = sums_[program];
  sum.seconds += seconds;
  sum.stalled += stalled;
  ++sum.count;
}

std::string ProgramTimes::table(const ProgramSet& set, const MemoryPlan& plan,
                                const MachineProfile& profile) {
  std::string text;
  for (const auto& [program, sum] : sums_) {
    const PredictedTime predicted = predict(set, plan, set.program_index(program), profile);
    text += fmt::format("  {:<28} {:9.2f} ms, stall {:9.2f}; predicted {:9.2f}, stall {:9.2f}\n",
                        program, sum.seconds / sum.count * 1e3, sum.stalled / sum.count * 1e3,
                        predicted.seconds * 1e3, predicted.exposed_stall * 1e3);
  }
  sums_.clear();
  return text;
}

}  // namespace ballast
