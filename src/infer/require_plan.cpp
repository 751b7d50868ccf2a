#include "infer/require_plan.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "fit/refusal_text.h"
#include "memory/machine.h"

namespace ballast::infer {

PlanTitle title_of(const fit::Request& request, std::string model, std::string mode,
                   std::string shape) {
  PlanTitle title = {.model = std::move(model),
                     .mode = std::move(mode),
                     .shape = std::move(shape),
                     .weights = std::string(name_of(request.job->format())),
                     .machine = machine_text(request.profile),
                     .budget = request.budget,
                     .shared_ram = request.backend.device == Device::cpu};
  for (Bytes* b : {&title.budget.gpu, &title.budget.host}) {
    if (*b == kNoLimit) *b = kUnlimited;
  }
  return title;
}

fit::PlannedRun require_plan(const fit::Request& request, const PlanTitle& title,
                             const PossibleChanges& changes) {
  fit::KnownNeeds known;
  auto outcome = fit::find_plan(request, known);
  if (auto* run = std::get_if<fit::PlannedRun>(&outcome)) return std::move(*run);
  const auto& refusal = std::get<Refusal>(outcome);
  // Without a GPU, and without a budget of its own for the compute share, the RAM bounds both.
  const bool ram_bounds_all = title.shared_ram && request.budget.gpu == request.budget.host;
  std::vector<fit::Change> all = fit::larger_budgets(refusal, ram_bounds_all, request.budget);
  if (changes) std::ranges::move(changes(request), std::back_inserter(all));
  fit::fail_refused(title, request, refusal, all, std::move(known));
}

}  // namespace ballast::infer
