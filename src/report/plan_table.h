#pragma once

#include <span>
#include <string>
#include <vector>

#include "memory/budget.h"
#include "plan/memory_plan.h"
#include "plan/predict.h"
#include "plan/process_lines.h"
#include "plan/refusal.h"

namespace ballast {

// What was planned, in the words of the command line.
struct PlanTitle {
  std::string model, mode, shape, weights, machine;
  Budget budget;
  bool shared_ram = false;  // CPU backend: the ram budget bounds both arenas together
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
  std::vector<std::int64_t> steps_of_kind = {};  // in an epoch
  std::int64_t total_steps = 0;
  std::vector<std::string> notes = {};
};

// For people: per phase and tier the peak and what it is made of; kinds of steps are one phase,
// with the heaviest of them.
std::string plan_table(const PlanTitle& title, const PlanView& view);

// For machines. Every peak_bytes includes the lines that no arena holds.
std::string plan_json(const PlanTitle& title, const PlanView& view);
std::string refusal_json(const PlanTitle& title, const Refusal& refusal,
                         std::span<const PlannedChange> advice);
std::string effect_of(const PlannedChange& c);
std::vector<Advice> advice_of(std::span<const PlannedChange> changes);

// "needs 41.3 GB of host memory during update, 32 GB allowed: optimizer 30.1 GB, ..."
std::string describe_shortage(const Shortage& s, const PlanTitle& title);

}  // namespace ballast
