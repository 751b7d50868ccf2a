#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fit/advice.h"
#include "infer/model_folder.h"
#include "io/weight_files.h"
#include "models/student/fit_job.h"
#include "models/wan/names.h"
#include "report/plan_table.h"
#include "train/config/distill_config.h"
#include "train/config/prompt_file.h"
#include "train/run/device_choice.h"
#include "train/schedule.h"
#include "train/trainer.h"

namespace ballast::train {

// A distillation with everything it names opened, headers only; ready to be planned.
struct DistillRun {
  DistillConfig config;
  student::Config student;
  infer::ModelFiles files;
  std::unique_ptr<WeightFiles> teacher;  // the request's weights point into it;
                                         // null: a plan before it is downloaded
  std::unique_ptr<wan::TensorMap> names;
  std::unique_ptr<PromptFile> prompts;
  fit::Request request = {.job = student::FitJob()};
  ScheduleOptions schedule;
  std::int64_t steps_per_epoch = 0, total_steps = 0;
  std::string model_hash;  // of the student's sizes and the teacher's tensors
  std::vector<std::string> notes;

  const student::PairJob& pair() const { return student::job_of(request).pair; }
  std::int64_t samples_per_step() const { return config.batch_size * config.gradient_accumulation; }
};

// Fails with ErrorCode::usage or ErrorCode::input where files and flags contradict each other.
DistillRun prepare_distill(DistillConfig config, const RunTarget& target);

// What the distillation batches of such a job take: the first of the request's other lines.
ProcessLine distill_batches_line(const DistillRun& run, const student::PairJob& job);

PlanTitle title_of(const DistillRun& run);
// Refers to `planned`.
PlanView view_of(const DistillRun& run, const fit::PlannedRun& planned);

// What could be typed differently, for a refusal: budgets, and what WanDistiller advises itself
// (the teacher's place, its precision, the batch, the student's size). Refers to `run`.
std::vector<fit::Change> possible_changes(const DistillRun& run, const Refusal& refusal);

// Behind the refusal: what is allocated, reserved, free and in all of each kind of memory, what was
// tried already, and a command that would run.
std::string tried_text(const DistillRun& run, const Refusal& refusal,
                       std::span<const PlannedChange> changes);

// Runs a planned distillation, from the beginning or from the newest whole checkpoint, to its end
// or to a signal: prompts are encoded first, in a phase of their own; then teacher and student run.
// The student is saved in output_dir; log, report and checkpoints are in a run folder below it.
TrainOutcome distill(DistillRun run, fit::PlannedRun planned, const TrainOptions& options);

}  // namespace ballast::train
