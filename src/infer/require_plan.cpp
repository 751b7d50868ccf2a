#include "infer/require_plan.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "fit/refusal_text.h"

namespace ballast::infer {

PlanTitle title_of(const fit::Request& request, std::string model, std::string mode,
                   std::string shape) {
  return {.model = std::move(model),
          .mode = std::move(mode),
          .shape = std::move(shape),
          .weights = std::string(name_of(request.job->format())),
          .machine = machine_text(request.profile),
          .budget = request.budget,
          .shared_ram = request.backend.device == Device::cpu};
}

fit::PlannedRun require_plan(const fit::Request& request, const PlanTitle& title,
                             const PossibleChanges& changes) {
  fit::NeedsCache known;
  auto outcome = fit::find_plan(request, known);
  if (auto* run = std::get_if<fit::PlannedRun>(&outcome)) return std::move(*run);
  const auto& refusal = std::get<Refusal>(outcome);
  // Without a GPU, and without a budget of its own for the compute share, the RAM bounds both.
  const Bytes share = request.budget.gpu;
  const bool ram_bounds_all =
      title.shared_ram && (share == request.budget.host || share == fit::kNoLimit);
  std::vector<fit::Change> all = fit::larger_budgets(refusal, ram_bounds_all, request.budget);
  if (changes) std::ranges::move(changes(request), std::back_inserter(all));
  fit::fail_refused(title, request, refusal, all, std::move(known));
}

}  // namespace ballast::infer
