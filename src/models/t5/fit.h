#pragma once

#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "memory/budget.h"
#include "models/t5/seq2seq.h"
#include "plan/predict.h"
#include "plan/process_lines.h"
#include "plan/profile.h"
#include "plan/refusal.h"

namespace ballast::t5 {

// Plans a training of the encoder-decoder inside budgets of device and host memory.

// What the caller has decided about one way to save memory.
enum class Choice : std::uint8_t { automatic, on, off };

struct FitRequest {
  Seq2SeqJob job;                   // its policy plays no part
  std::vector<WeightGroup> groups;  // models/t5/weights.h; planned_groups() serves as well
  Backend backend;
  MachineProfile profile;
  Budget budget;
  std::optional<MemoryPolicy> policy;    // nullopt: the fastest predicted one that fits
  std::vector<ProcessLine> other_lines;  // what the caller itself keeps in memory
  std::int64_t runs_per_step = 1;        // of the step program before an update
  // Without `policy`. checkpointing: blocks keep their input only and backward computes the rest
  // again. offloading: weights, gradients and states of some blocks wait in host memory.
  Choice checkpointing = Choice::automatic, offloading = Choice::automatic;
};

// A job recorded under one policy, with everything it needs.
struct PlannedRun {
  MemoryPolicy policy;
  ProgramSet set;
  MemoryPlan plan;
  std::vector<PredictedTime> times;  // by program
  std::vector<ProcessLine> lines;    // what the arenas do not hold
  std::int64_t runs_per_step = 1;    // as requested

  Bytes lines_of(Tier t) const;
  Bytes needed(Tier t) const { return plan.peak_of(t) + lines_of(t); }
  // A step of a kind and the update behind it; runs: of the step program before an update.
  double seconds_of_step(std::size_t kind, std::int64_t runs = 1) const;
  double seconds_per_step() const { return seconds_of_step(0, runs_per_step); }
};

PlannedRun plan_run(const FitRequest& request, const MemoryPolicy& policy);

// Empty when it fits. On the CPU backend the host budget bounds both arenas together.
std::vector<Shortage> shortages(const FitRequest& request, const PlannedRun& run);

// The fastest predicted plan that fits, or what the leanest one misses.
std::variant<PlannedRun, Refusal> fit(const FitRequest& request);

// Something the user could change.
struct Change {
  std::string text;  // as it is typed or written: "--batch-size 4"
  std::function<void(FitRequest&)> apply;
};
// Every change planned anew: those that fit first, fastest first, then those that come closest.
std::vector<PlannedChange> try_changes(const FitRequest& request, const Refusal& refusal,
                                       const std::vector<Change>& changes);

// "24 of 48 blocks stay, 24 stream from host memory; activations computed again": what a policy
// means for this model.
std::string describe(const Config& config, const MemoryPolicy& policy);

}  // namespace ballast::t5
