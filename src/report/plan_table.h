#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/wrap_text.h"
#include "memory/budget.h"
#include "plan/memory_plan.h"
#include "plan/predict.h"
#include "plan/process_lines.h"
#include "plan/refusal.h"

namespace ballast {

// What a run trains, for people; 0: nothing is trained.
struct TrainingSizes {
  std::int64_t parameters = 0;  // that change
  std::int64_t batch = 0;       // samples of an optimizer step, accumulation included
  std::int64_t min_batch = 0;   // of its smallest step
};

// What was planned, in the words of the command line.
struct PlanTitle {
  std::string model, mode, shape, weights, machine;
  Budget budget;
  bool shared_ram = false;  // CPU backend: the ram budget bounds both arenas together
  TrainingSizes sizes = {};
  bool ram_of_this_machine = false;  // another machine is planned for, whose RAM was not given
};

// The passes of one step: each is a forward and backward over some of its samples.
struct PassTimes {
  std::int64_t count = 0;            // 0: unknown
  double shortest = 0, longest = 0;  // seconds
  double waiting = 0;                // of all passes together, for data
};

// A line of the plan: "denoising  20 steps of unipc".
struct PlanFact {
  std::string label, text;
};

// A part of the work that runs before or after the planned programs and gives its memory back:
// encoding the prompts of a sample, decoding its clips.
struct PlanStage {
  std::string name, how;
  Bytes device, host;
};

// What a run writes to its output folder besides what its plan holds on disk.
struct PlanFiles {
  std::string folder;
  std::vector<ProcessLine> lines = {};
  std::optional<Bytes> free = {};      // of the folder's file system; nullopt: of another machine
  Bytes freed_by_one_checkpoint = {};  // were no more than one kept
  Bytes largest = {};                  // of single files

  Bytes bytes() const;
};

struct PlanView {
  const MemoryPlan& plan;
  std::span<const PredictedTime> times;  // by program
  std::span<const ProcessLine> lines;
  std::string policy;
  std::string policy_text;
  std::int64_t streamed_blocks = 0;
  // Of a whole training run; empty and 0 where only a step is planned.
  std::vector<double> step_seconds = {};         // by kind of step, the update included
  std::vector<PassTimes> passes = {};            // by kind of step, or empty
  std::string_view step_label = "step";          // without training: "evaluation"
  std::vector<std::int64_t> steps_of_kind = {};  // in an epoch
  std::int64_t total_steps = 0;
  std::vector<std::string> notes = {};
  std::vector<PlanFact> facts = {};  // lines behind those of the step
  std::vector<PlanStage> stages = {};
  PlanFiles files = {};
};

struct PlanStyle {
  bool details = false;                 // memory by phase, outside the arenas, times by phase
  std::size_t columns = kPlainColumns;  // lines are broken there
};

// For people: the verdict, the totals, how the run is done and how long a step takes, the notes;
// then the details, or a line that says how to see them.
std::string plan_table(const PlanTitle& title, const PlanView& view, const PlanStyle& style = {});

// The same of work that is stages alone, planned one by one.
std::string stages_table(const Budget& budget, bool shared_ram, std::span<const PlanStage> stages,
                         std::size_t columns);
// "fits: 9.260 GB of 24.00 GB GPU memory, 3.400 GB of 32.00 GB RAM"
std::string verdict_line(const PlanTitle& title, const PlanView& view);

// What plan_table() ends with where details are not shown.
std::string details_hint();

// What the parts of a plan add up to.
Bytes allowed_of(const Budget& b, Tier t);
std::vector<std::pair<Role, Bytes>> sorted_roles(const BytesByRole& roles);  // largest first, no 0
double epoch_seconds(const PlanView& view);
std::int64_t epoch_steps(const PlanView& view);

// The first lines of a plan and of a refusal: what runs, what it trains, whose RAM is meant.
std::string title_text(const PlanTitle& title, std::size_t columns);

// The notes of a plan or a refusal, each once: "" where there are none.
std::string notes_text(std::span<const std::string> notes, std::size_t columns);

// "policy     text": the columns of labels in a plan.
std::string labelled(std::string_view label, std::string_view text, std::size_t columns);

// "9.96 s (4 passes of 2.49 s)"
std::string step_text(double seconds, const PassTimes& passes);

// For machines. Every peak_bytes includes the lines that no arena holds.
std::string plan_json(const PlanTitle& title, const PlanView& view);
std::string refusal_json(const PlanTitle& title, const Refusal& refusal,
                         std::span<const PlannedChange> advice);
// "fits: 4.900 MB of GPU memory, 1.200 MB of RAM; step 6 % slower"
std::string effect_of(const PlannedChange& c, bool shared_ram = false);
std::vector<Advice> advice_of(std::span<const PlannedChange> changes, bool shared_ram = false);
// Largest first, those with at least that share of all.
std::string roles_text(const BytesByRole& roles, double min_share = 0);

}  // namespace ballast
