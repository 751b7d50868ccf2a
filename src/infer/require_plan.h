#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "fit/advice.h"
#include "report/plan_table.h"

namespace ballast::infer {

// What a request runs, for people: "flan-t5-xl generate: 3 prompts".
PlanTitle title_of(const fit::Request& request, std::string model, std::string mode,
                   std::string shape);

// A part of a command. Parts follow one another, and each has the whole budget: one gives its
// memory back before the next begins.
struct CommandPart {
  fit::Request request;
  PlanTitle title;
};

// What the caller's user could change besides budgets where these parts do not fit.
using PossibleChanges =
    std::function<std::vector<fit::Change>(std::span<const fit::Request> refused)>;

// Ends the command: the refusal of a part, and changes to be planned for the others, too.
using Refuse =
    std::function<void(const CommandPart& part, const Refusal& refusal, fit::NeedsCache known,
                       const std::function<std::vector<fit::Change>()>& changes,
                       std::span<const fit::Request> others)>;

// Plans of all parts. Fails with ErrorCode::refused where one does not fit: the text is about the
// part that misses most, the advice larger budgets and `changes`, each planned for all parts.
std::vector<fit::PlannedRun> require_plans(const std::vector<CommandPart>& parts,
                                           const PossibleChanges& changes = nullptr,
                                           const Refuse& refuse = nullptr);
fit::PlannedRun require_plan(CommandPart part, const PossibleChanges& changes = nullptr);

}  // namespace ballast::infer
