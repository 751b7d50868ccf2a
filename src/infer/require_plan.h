#pragma once

#include <functional>
#include <string>
#include <vector>

#include "fit/advice.h"
#include "report/plan_table.h"

namespace ballast::infer {

// What a request runs, for people: "flan-t5-xl generate: 3 prompts".
PlanTitle title_of(const fit::Request& request, std::string model, std::string mode,
                   std::string shape);

// What the caller's user could change besides budgets.
using PossibleChanges = std::function<std::vector<fit::Change>(const fit::Request&)>;

// The plan of a request. Fails with ErrorCode::refused where nothing fits; the advice is larger
// budgets and `changes`, each of them planned.
fit::PlannedRun require_plan(const fit::Request& request, const PlanTitle& title,
                             const PossibleChanges& changes = nullptr);

}  // namespace ballast::infer
