#include "infer/require_plan.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "fit/refusal_text.h"

namespace ballast::infer {
namespace {

// Shortages by tier, those of the part that needs most of it.
void add_shortages(Refusal& to, const Refusal& more) {
  for (const Shortage& s : more.shortages) {
    const auto same = std::ranges::find(to.shortages, s.tier, &Shortage::tier);
    if (same == to.shortages.end()) {
      to.shortages.push_back(s);
    } else if (same->needed < s.needed) {
      *same = s;
    }
  }
}

}  // namespace

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

std::vector<fit::PlannedRun> require_plans(const std::vector<CommandPart>& parts,
                                           const PossibleChanges& changes, const Refuse& refuse) {
  std::vector<fit::PlannedRun> plans;
  std::vector<fit::Request> refused;
  Refusal told, all;  // of the part that misses most; what all of them miss
  std::size_t worst = 0;
  Bytes most;
  fit::NeedsCache of_worst;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    fit::NeedsCache known;
    auto outcome = fit::find_plan(parts[i].request, known);
    if (auto* run = std::get_if<fit::PlannedRun>(&outcome)) {
      plans.push_back(std::move(*run));
      continue;
    }
    const auto& refusal = std::get<Refusal>(outcome);
    const Bytes missing = fit::missing_memory(parts[i].request, refusal.needed);
    if (refused.empty() || missing > most) {
      told = refusal;
      worst = i;
      most = missing;
      of_worst = std::move(known);
    }
    add_shortages(all, refusal);
    refused.push_back(parts[i].request);
  }
  if (refused.empty()) return plans;
  const CommandPart& part = parts[worst];
  std::vector<fit::Request> others;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i != worst) others.push_back(parts[i].request);
  }
  const auto possible = [&] {
    // Without a GPU, and without a budget of its own for the compute share, the RAM bounds both.
    const bool ram_bounds_all = std::ranges::all_of(parts, [](const CommandPart& p) {
      const Budget& b = p.request.budget;
      return p.title.shared_ram && (b.gpu == b.host || b.gpu == fit::kNoLimit);
    });
    std::vector<fit::Change> list = fit::larger_budgets(all, ram_bounds_all, part.request.budget);
    if (changes) std::ranges::move(changes(refused), std::back_inserter(list));
    return list;
  };
  if (refuse) refuse(part, told, std::move(of_worst), possible, others);
  fit::fail_refused(part.title, part.request, told, possible(), std::move(of_worst), others);
}

fit::PlannedRun require_plan(CommandPart part, const PossibleChanges& changes) {
  return std::move(require_plans({std::move(part)}, changes).front());
}

}  // namespace ballast::infer
