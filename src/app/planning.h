#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "app/training_output.h"
#include "fit/advice.h"
#include "fit/refusal_text.h"
#include "infer/require_plan.h"
#include "train/config/flags.h"
#include "train/run/prepared_run.h"
#include "train/run/run_plan.h"

namespace ballast {

// What `plan` and `train` share: the machine, the table, the refusal.

[[noreturn]] void fail_unknown(std::string_view flag, const std::string& value,
                               const std::vector<std::string_view>& known);

// "this", as options say, or one of the bundled profiles with the device it has.
train::RunTarget find_target(const std::string& name, const MachineOptions& options);

// The flags of ours in a command line whose others describe a training run.
struct OwnFlags {
  std::string target = "this";
  int threads = 0;
  bool json = false, check_nan = false, details = false, ignore_limits = false;
  bool steps = false;                     // --json=steps: json too
  std::optional<std::string> serve = {};  // port of the live page
  std::vector<std::string> rest;
  // Of `plan` alone, which reads them itself.
  std::string html = {};
  std::vector<MappedPlan> others = {};
};
PlanOutput plan_output(const OwnFlags& own);
// What they say of the machine that a run's other flags describe.
void apply(const OwnFlags& own, MachineOptions& to);
std::string own_flags_help();
std::vector<train::FlagInfo> own_flag_infos();  // the same for completions
// prints_steps: of a command that knows --json=steps.
OwnFlags split_own_flags(const std::vector<std::string>& arguments, bool prints_steps = false);

// Fails where its files do not fit.
void show_plan(const PlanTitle& title, const fit::Request& request, const fit::PlannedRun& run,
               const PlanView& view, const PlanOutput& output);

// The answer first; the advice is planned while it is read. known, others: as fit::try_changes()
// takes them.
[[noreturn]] void fail_refused(const PlanTitle& title, const fit::Request& request,
                               const Refusal& refusal, fit::NeedsCache known,
                               const std::function<std::vector<fit::Change>()>& changes,
                               const PlanOutput& output, std::span<const std::string> notes = {},
                               std::span<const fit::Request> others = {});
// The same of a command that has parts.
std::vector<fit::PlannedRun> require_plans(const std::vector<infer::CommandPart>& parts,
                                           const infer::PossibleChanges& changes,
                                           const PlanOutput& output);

// Refuses a run whose files do not fit where they go. Nothing is checked for another machine.
void require_disk_space(const PlanTitle& title, const PlanView& view, const PlanOutput& output);

// Tells that a run does not fit before its advice is known; fail_with_advice() then ends it.
void print_refusal(const PlanTitle& title, const Refusal& refusal, bool policy_given,
                   std::span<const std::string> notes);
[[noreturn]] void fail_with_advice(const PlanTitle& title, const Refusal& refusal,
                                   std::vector<Advice> advice);

}  // namespace ballast
