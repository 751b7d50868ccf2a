#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "memory/budget.h"
#include "models/wan/dit.h"
#include "models/wan/teacher.h"
#include "plan/predict.h"
#include "plan/process_lines.h"
#include "plan/profile.h"
#include "plan/refusal.h"

namespace ballast::wan {

// What the caller has decided about one way to save memory.
enum class Choice : std::uint8_t { automatic, on, off };

// Programs of another model in the same plan, for when the transformer rests.
struct Companion {
  using Record = std::function<void(ProgramSet&)>;
  std::vector<Record> ways = {};  // with the same results: the fastest first, the leanest last
  // Which of them; none: the first that leaves steps as fast as they are without, else the leanest.
  std::optional<std::size_t> way = {};

  std::size_t chosen() const { return way.value_or(ways.size() - 1); }
};

// What to plan, for which machine, inside which budget.
struct FitRequest {
  DitJob job;
  std::vector<std::vector<WeightGroup>> experts;  // weights, one list per expert
  std::optional<TeacherJob> teacher = {};         // that answers beside it
  Companion companion = {};
  Backend backend;
  MachineProfile profile;
  Budget budget;
  std::optional<MemoryPolicy> policy;           // nullopt: the fastest predicted one that fits
  std::vector<ProcessLine> other_lines;         // what the caller itself keeps in memory
  std::optional<std::int64_t> streamed_blocks;  // exactly so many of them pass through slots
  // Without `policy`. checkpointing: blocks keep little and backward computes the rest again.
  // offloading: weights pass through slots, and what blocks keep waits in host memory.
  Choice checkpointing = Choice::automatic, offloading = Choice::automatic;
  // Of two experts: how often a step begins with reading the other one's weights. Half of the steps
  // of a training run are the other expert's at most; a clip changes experts once.
  double expert_changes = 0.5;

  bool switched() const {
    return checkpointing != Choice::automatic || offloading != Choice::automatic;
  }
};

// A job recorded under one policy, with everything it needs.
struct PlannedRun {
  MemoryPolicy policy;
  ProgramSet set;
  MemoryPlan plan;
  std::vector<PredictedTime> times;          // by program
  std::vector<ProcessLine> lines;            // what the arenas do not hold
  std::vector<std::vector<StepPart>> parts;  // of each kind of step
  double expert_changes = 0.5;               // as the request says
  std::optional<DistilPrograms> distil;      // as the job says
  MemoryPolicy teacher_policy;               // of the request's teacher
  std::size_t companion_way = 0;             // of the request's companion

  Bytes lines_of(Tier t) const;
  Bytes needed(Tier t) const { return plan.peak_of(t) + lines_of(t); }
  const PredictedTime& step_time() const;  // of the first kind of step
  // All that a step of a kind does: its parts, the update, its share of a change of experts.
  double seconds_of_step(std::size_t kind) const;
  double seconds_per_step() const { return seconds_of_step(0); }
};

PlannedRun plan_run(const FitRequest& request, const MemoryPolicy& policy);

// Empty when it fits. On the CPU backend the host budget bounds both arenas together.
std::vector<Shortage> shortages(const FitRequest& request, const PlannedRun& run);
Bytes excess(const std::vector<Shortage>& missing);  // over the budget, all tiers together

// The fastest predicted plan that fits; the answer comes before it is looked for when nothing can.
std::variant<PlannedRun, Refusal> fit(const FitRequest& request);

// The same for requests that differ in their budgets only: what is known of the job's needs serves
// all of them (models/wan/job_needs.h).
class KnownNeeds;
std::variant<PlannedRun, Refusal> fit(const FitRequest& request, KnownNeeds& known);

// Blocks whose weights pass through slots.
std::int64_t streamed_blocks(const Config& config, const MemoryPolicy& policy);
// Of them those that come from host memory.
std::int64_t blocks_from_host(const Config& config, const MemoryPolicy& policy);

// Whether one of the leanest plans may fit, by live bytes: quick. A no is final for those plans.
bool may_fit(const FitRequest& request);
bool may_fit(const FitRequest& request, KnownNeeds& known);

// The one of the leanest policies that misses least, or the one asked for.
MemoryPolicy closest_policy(const FitRequest& request);
MemoryPolicy closest_policy(const FitRequest& request, KnownNeeds& known);

// The plans that need least, of which any refusal speaks: what they trade is device for host
// memory.
std::vector<MemoryPolicy> leanest_policies(const DitJob& job);

}  // namespace ballast::wan
