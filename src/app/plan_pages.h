#pragma once

#include <string>
#include <vector>

#include "app/training_output.h"
#include "fit/advice.h"
#include "report/page/plan_page.h"

namespace ballast {

// The page of `ballast plan --html` (docs/plan-page.md).

MappedPlan map_run(const std::string& label, const PlanTitle& title, const fit::Request& request,
                   const fit::PlannedRun& run, const std::string& verdict,
                   const std::string& policy, const MapLimits& limits = {});

// A plan that fits, and output.others beside it. Nothing where no page is asked for.
void save_plan_page(const PlanOutput& output, const PlanTitle& title, const fit::Request& request,
                    const fit::PlannedRun& run, const PlanView& view);

// A plan that does not fit, and beside it what the advice leads to.
class RefusalPage {
 public:
  // known: of the request. Plans again: the refusal has no run.
  RefusalPage(const PlanOutput& output, const PlanTitle& title, const fit::Request& request,
              const Refusal& refusal, fit::NeedsCache& known);
  fit::PlanSeen seen();  // empty where no page is asked for
  void save(std::span<const PlannedChange> advice);

 private:
  const PlanOutput& output_;
  const PlanTitle& title_;
  std::vector<MappedPlan> plans_, changes_;
};

}  // namespace ballast
