#include "app/plan_pages.h"

#include <algorithm>

#include "core/log.h"
#include "fit/refusal_text.h"
#include "io/atomic_file.h"

namespace ballast {
namespace {

constexpr std::string_view kThisPlan = "this plan";

void write_page(const PlanOutput& output, const PlanTitle& title, std::span<const MappedPlan> plans,
                std::string_view heading) {
  AtomicFile page(output.html);
  page.write(plan_page(title, plans, heading));
  page.commit();
  log::info("page: {} ({})", printable(output.html), Bytes{page.written()});
}

}  // namespace

MappedPlan map_run(const std::string& label, const PlanTitle& title, const fit::Request& request,
                   const fit::PlannedRun& run, const std::string& verdict,
                   const std::string& policy, const MapLimits& limits) {
  PlanTitle here = title;
  here.budget = request.budget;
  return map_plan({.label = label,
                   .title = here,
                   .set = run.set,
                   .plan = run.plan,
                   .lines = run.lines,
                   .times = run.times,
                   .timeline = [&](int program) { return fit::timeline_of(request, run, program); },
                   .verdict = verdict,
                   .policy = policy,
                   .step_seconds = run.seconds_per_step(),
                   .limits = limits});
}

void save_plan_page(const PlanOutput& output, const PlanTitle& title, const fit::Request& request,
                    const fit::PlannedRun& run, const PlanView& view) {
  if (output.html.empty()) return;
  std::vector<MappedPlan> plans = {map_run(std::string(kThisPlan), title, request, run,
                                           verdict_line(title, view), view.policy_text)};
  for (MappedPlan other : output.others) {
    other.effect = difference_text(plans[0], other);
    plans.push_back(std::move(other));
  }
  write_page(output, title, plans, "Compared with");
}

RefusalPage::RefusalPage(const PlanOutput& output, const PlanTitle& title,
                         const fit::Request& request, const Refusal& refusal,
                         fit::NeedsCache& known)
    : output_(output), title_(title) {
  if (output.html.empty()) return;
  fit::PlannedRun run;
  (void)fit::find_plan(request, known, &run);
  plans_ = {map_run(std::string(kThisPlan), title, request, run,
                    fit::refusal_verdict(refusal, title), refusal.policy)};
  for (MappedPlan other : output.others) {
    other.effect = difference_text(plans_[0], other);
    plans_.push_back(std::move(other));
  }
}

fit::PlanSeen RefusalPage::seen() {
  if (plans_.empty()) return {};
  return
      [this](const fit::Change& change, const fit::Request& request, const fit::PlannedRun& run) {
        PlanTitle title = title_;
        title.budget = request.budget;
        const std::vector<Shortage> missing = fit::shortages(request, run);
        changes_.push_back(map_run(
            change.text, title, request, run,
            missing.empty() ? "fits" : shortage_lines(missing, request.budget, title.shared_ram),
            run.policy.name, kSmallMap));
      };
}

void RefusalPage::save(std::span<const PlannedChange> advice) {
  if (plans_.empty()) return;
  for (const PlannedChange& a : advice) {
    const auto found = std::ranges::find(changes_, a.text, &MappedPlan::label);
    if (found == changes_.end()) continue;
    found->effect = effect_of(a, title_.shared_ram);
    plans_.push_back(*found);
  }
  write_page(output_, title_, plans_, "What would help");
}

}  // namespace ballast
