#pragma once

#include <span>
#include <string>

#include "fit/fit.h"
#include "models/wan/fit_job.h"
#include "plan/runner.h"
#include "report/run_info.h"
#include "report/run_log.h"
#include "train/run/prepared_run.h"
#include "train/training_task.h"

namespace ballast::train {

// What a run says of itself, in its log, report and checkpoints.

MemoryNumbers planned_memory(const fit::Request& request, const fit::PlannedRun& planned);
// What every run says: its machine, memory and plan, and when it began.
RunInfo common_info(const fit::Request& request, const fit::PlannedRun& planned,
                    std::int64_t total_steps, std::vector<std::string> notes);
std::string dataset_text(const data::Dataset& d);  // "120 clips in 3 buckets"
std::string config_text(const TrainConfig& c);     // of its file, without secrets

// Of a run of clips: PreparedRun or PreparedVae.
template <class Run>
RunInfo run_info(const Run& run, const fit::PlannedRun& planned, const std::string& command) {
  RunInfo info = common_info(run.request, planned, run.total_steps, run.notes);
  info.title = run.title;
  info.command = command;
  info.summary = {{"model", run.checkpoints[0].path()},
                  {"dataset", dataset_text(*run.dataset)},
                  {"steps", fmt::format("{}, {} per epoch", run.total_steps, run.steps_per_epoch)},
                  {"samples per step", run.shapes},
                  {"optimizer", std::string(name_of(run.config.optimizer.kind))},
                  {"learning rate",
                   fmt::format("{:g}, {}", run.schedule.learning_rate, name_of(run.schedule.kind))},
                  {"seed", std::to_string(run.config.seed)},
                  {"policy", planned.policy.name}};
  info.config = config_text(run.config);
  return info;
}

// Of names, shapes and dtypes of all tensors, and of some numbers in some of them; not of paths.
std::string model_hash(std::span<const WeightFiles> checkpoints);
inline std::string model_hash(const PreparedRun& run) { return model_hash(run.checkpoints); }

template <class Run>
RunSetup run_setup(const Run& run, const fit::PlannedRun& planned, const std::string& command) {
  return {.config = run.config,
          .total_steps = run.total_steps,
          .schedule = run.schedule,
          .backend = run.request.backend,
          .model = run.checkpoints[0].path(),
          .model_hash = model_hash(run.checkpoints),
          .device = planned.plan.peak_of(Tier::device),
          .host = planned.plan.peak_of(Tier::host),
          .disk = planned.plan.peak_of(Tier::disk),
          .steps = planned.steps,
          .info = run_info(run, planned, command),
          .config_hash = run.config_hash};
}

// Adds a run's lanes: compute, upload and disk busy, compute waiting.
void add_lane_times(StepTimes& times, const std::array<LaneTime, kLaneCount>& lanes);

}  // namespace ballast::train
