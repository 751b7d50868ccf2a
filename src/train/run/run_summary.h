#pragma once

#include <span>
#include <string>

#include "fit/fit.h"
#include "models/wan/fit_job.h"
#include "plan/runner.h"
#include "report/run_info.h"
#include "report/run_log.h"
#include "train/run/prepared_run.h"

namespace ballast::train {

// What a run says of itself, in its log, report and checkpoints.

MemoryNumbers planned_memory(const fit::Request& request, const fit::PlannedRun& planned);
struct RunFacts {
  const TrainConfig& config;
  std::string title, command, model, shapes, policy;
  const data::Dataset& dataset;
  std::int64_t total_steps = 0, steps_per_epoch = 0;
  const ScheduleOptions& schedule;
  const MachineProfile& profile;
  const Backend& backend;
  const Budget& budget;
  const MemoryPlan& plan;
  const std::vector<ProcessLine>& lines;
  MemoryNumbers planned;
  std::vector<std::string> notes;
};
RunInfo run_info(const RunFacts& facts);
RunInfo run_info(const PreparedRun& run, const fit::PlannedRun& planned,
                 const std::string& command);

// Of names, shapes and dtypes of all tensors, and of some numbers in some of them; not of paths.
std::string model_hash(std::span<const WeightFiles> checkpoints);
inline std::string model_hash(const PreparedRun& run) { return model_hash(run.checkpoints); }

// Adds a run's lanes: compute, upload and disk busy, compute waiting.
void add_lane_times(StepTimes& times, const std::array<LaneTime, kLaneCount>& lanes);

}  // namespace ballast::train
