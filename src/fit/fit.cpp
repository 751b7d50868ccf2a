#include "fit/fit.h"

#include <algorithm>
#include <iterator>

#include "fit/bounds.h"
#include "fit/fill.h"
#include "fit/host_fill.h"
#include "fit/search.h"
#include "fit/tuning.h"

namespace ballast::fit {

PlannedRun plan_run(const Request& request, const MemoryPolicy& policy) {
  return complete(request, record(request, policy));
}

std::vector<Shortage> shortages(const Request& request, const PlannedRun& run) {
  const Bytes device = run.needed(Tier::device);
  Bytes host = run.needed(Tier::host);
  if (request.backend.device == Device::cpu) host += device;
  auto all = ballast::shortages(run.plan, {device, host, run.needed(Tier::disk)},
                                {request.budget.gpu, request.budget.host, request.budget.disk});
  for (Shortage& s : all) {
    for (const ProcessLine& l : run.lines) {
      if (l.tier == s.tier) s.outside.emplace_back(l.name, l.bytes);
    }
  }
  return all;
}

Bytes excess(const std::vector<Shortage>& missing) {
  Bytes sum;
  for (const Shortage& s : missing) sum += s.needed - s.allowed;
  return sum;
}

std::int64_t streamed_blocks(const Job& job, const MemoryPolicy& policy) {
  if (!policy.streams()) return 0;
  std::int64_t count = 0;
  for (std::int64_t g = 1; g <= job.blocks(); ++g) {
    count += !evenly_chosen(g, job.group_count(), policy.streaming->resident_groups);
  }
  return count;
}

std::int64_t blocks_from_host(const Job& job, const MemoryPolicy& policy) {
  if (!policy.streams()) return 0;
  const int groups = job.group_count();
  std::int64_t count = 0;
  for (std::int64_t g = 1; g <= job.blocks(); ++g) {
    count += !evenly_chosen(g, groups, policy.streaming->resident_groups) &&
             comes_from_host(*policy.streaming, g, groups);
  }
  return count;
}

MemoryPolicy closest_policy(const Request& request, NeedsCache& known) {
  if (request.policy) return request.job->adapted(*request.policy);
  const Request search = heaviest(request);
  std::optional<MemoryPolicy> closest;
  Bytes least;
  const int most_on_disk = max_disk_state_groups(search, known);
  for (const int on_disk : {0, most_on_disk}) {
    for (MemoryPolicy& policy : lean_policies(search, on_disk)) {
      if (const auto bound = known.needs_resident(search, policy);
          closest && bound && least <= excess(search, *bound)) {
        continue;
      }
      const Bytes missing = excess(search, known.needs_for(search, policy));
      if (closest && least <= missing) continue;
      least = missing;
      closest = std::move(policy);
      if (least.count == 0) return *closest;
    }
    if (most_on_disk == 0) break;
  }
  return *closest;
}

bool may_fit(const Request& request, NeedsCache& known) {
  if (auto variants = request.job->variants();
      !variants.empty() && !request.job->last_variant_is_leanest()) {
    return std::ranges::any_of(variants, [&](std::unique_ptr<Job>& variant) {
      Request r = request;
      r.job = std::move(variant);
      NeedsCache anew;
      return may_fit(r, anew);
    });
  }
  const Request search = heaviest(request);
  if (has_good_odds(search, known, 0)) return true;
  const int on_disk = max_disk_state_groups(search, known);
  return on_disk > 0 && has_good_odds(search, known, on_disk);
}

namespace {

// A search that others follow returns a plan alone: its refusal would not be read.
enum class Wanted : std::uint8_t { plan_or_reason, plan };

Outcome outcome_of(const Request& request, NeedsCache& known, Wanted wanted, PlannedRun* refused);

// refused: where it is given, it gets the run that the refusal speaks of.
Refusal refusal(std::string policy, PlannedRun run, std::vector<Shortage> missing,
                PlannedRun* refused) {
  Refusal r = {.policy = std::move(policy),
               .needed = {run.needed(Tier::device), run.needed(Tier::host), run.needed(Tier::disk)},
               .shortages = std::move(missing),
               .seconds_per_step = run.seconds_per_step()};
  if (refused) *refused = std::move(run);
  return r;
}

Refusal refuse(const Request& request, NeedsCache& known, PlannedRun* refused) {
  const MemoryPolicy policy = closest_policy(request, known);
  const bool as_searched = request.job->kinds() == request.job->heaviest()->kinds();
  PlannedRun run =
      as_searched ? complete(request, known.recording(request, policy)) : plan_run(request, policy);
  std::vector<Shortage> missing = shortages(request, run);
  return refusal("the lowest-memory plan", std::move(run), std::move(missing), refused);
}

// Whether the job fits under this policy without groups that stay: then a search finds a plan. A no
// says nothing.
bool fits_by_bound(const Request& request, const MemoryPolicy& lean, NeedsCache& known) {
  const Request search = heaviest(request);
  return !known.exceeds_bound(search, lean) &&
         excess(search, known.needs_for(search, lean)).count == 0 &&
         fits(request, record(request, lean));
}

// The leanest policies that a search may begin with.
std::vector<MemoryPolicy> all_lean_policies(const Request& request, NeedsCache& known) {
  if (request.policy || request.switches.any()) return {};
  const Request search = heaviest(request);
  std::vector<MemoryPolicy> all = lean_policies(search);
  if (const int on_disk = max_disk_state_groups(search, known); on_disk > 0) {
    std::ranges::move(lean_policies(search, on_disk), std::back_inserter(all));
  }
  return all;
}

// As many groups of the second model stay as fit. The fastest plan is looked for with the number
// that it comes to, and on the way where no lean one shows that there is a plan. Nothing: there is
// none. without: what is known where none stay.
std::optional<PlannedRun> with_second_groups(Request request, NeedsCache& without) {
  std::vector<MemoryPolicy> lean = all_lean_policies(request, without);
  std::optional<PlannedRun> run;
  int run_groups = -1;  // that stay in it
  int groups = 0;
  const auto look = [&](NeedsCache& known) {
    auto outcome = outcome_of(request, known, Wanted::plan, nullptr);
    auto* fastest = std::get_if<PlannedRun>(&outcome);
    if (!fastest) return false;
    run = std::move(*fastest);
    run_groups = groups;
    return true;
  };
  const auto is_there = [&](NeedsCache& known) {
    const auto found = std::ranges::find_if(
        lean, [&](const MemoryPolicy& p) { return fits_by_bound(request, p, known); });
    if (found == lean.end()) return look(known);
    std::iter_swap(lean.begin(), found);  // the next number is asked of it first
    return true;
  };
  if (!is_there(without)) return std::nullopt;
  int low = 0, high = request.job->second_groups();  // fits with low, not with high
  NeedsCache with, *of_low = &without;
  while (high - low > 1) {
    groups = (low + high) / 2;
    request.job->keep_second_groups(groups);
    NeedsCache known;
    if (!is_there(known)) {
      high = groups;
      continue;
    }
    low = groups;
    with = std::move(known);
    of_low = &with;
  }
  groups = low;
  request.job->keep_second_groups(groups);
  if (run_groups != low) look(*of_low);
  return run;
}

// No step of the job as it is takes less, wherever its weights are.
double lower_bound_of(const Request& request, NeedsCache& known) {
  const auto lists = request.job->candidates(request.switches);
  return seconds_lower_bound(known.needs_for(request, lists.front().front()), request.profile);
}

// The ways of a job are looked at in turn, the fastest first: until one fits, where those behind it
// are slower; where it is known how fast a step is without what they are about, until one is as
// fast.
Outcome fit_variants(Request request, std::vector<std::unique_ptr<Job>> variants, Wanted wanted,
                     PlannedRun* refused) {
  const bool later_may_win = request.job->slower_variants_may_win();
  const bool one_is_leanest = request.job->last_variant_is_leanest();
  std::optional<double> lower_bound_seconds;
  if (auto alone = request.job->without_variants()) {
    Request without = request;
    without.job = std::move(alone);
    NeedsCache known;
    const auto outcome = outcome_of(without, known, Wanted::plan, nullptr);
    if (const auto* run = std::get_if<PlannedRun>(&outcome)) {
      lower_bound_seconds = run->seconds_per_step();
    } else {
      variants.erase(variants.begin(), variants.end() - 1);  // the leanest speaks for all of them
    }
  }
  std::optional<PlannedRun> best;
  std::optional<Refusal> closest;
  for (std::size_t variant = 0; variant < variants.size(); ++variant) {
    request.job = std::move(variants[variant]);
    NeedsCache known;
    if (best && lower_bound_of(request, known) >= best->seconds_per_step()) break;
    // The leanest speaks for all of them, where it is known which one that is.
    const bool speaks = variant + 1 == variants.size() || !one_is_leanest;
    const Wanted here = speaks && !best ? wanted : Wanted::plan;
    std::optional<PlannedRun> run;
    if (request.job->second_groups() > 0) run = with_second_groups(request, known);
    if (!run && (request.job->second_groups() == 0 || here == Wanted::plan_or_reason)) {
      PlannedRun not_fitting;
      auto outcome = outcome_of(request, known, here, refused ? &not_fitting : nullptr);
      if (auto* found = std::get_if<PlannedRun>(&outcome)) {
        run = std::move(*found);
      } else if (here == Wanted::plan_or_reason) {
        auto& refusal = std::get<Refusal>(outcome);
        if (!closest || excess(refusal.shortages) < excess(closest->shortages)) {
          closest = std::move(refusal);
          if (refused) *refused = std::move(not_fitting);
        }
      }
    }
    if (!run) continue;
    if (!best || run->seconds_per_step() < best->seconds_per_step()) best = std::move(run);
    const bool as_fast =
        lower_bound_seconds && best->seconds_per_step() <= tuning::kAsFast * *lower_bound_seconds;
    if (as_fast || (!lower_bound_seconds && !later_may_win)) break;
  }
  if (best) return std::move(*best);
  return closest ? std::move(*closest) : Refusal{};
}

// The fastest predicted plan among those that keep to the switches.
Outcome fit_switched(const Request& request, PlannedRun* refused) {
  struct Candidate {
    MemoryPolicy policy;
    Bytes missing;                   // at least
    double lower_bound_seconds = 0;  // no step takes less
  };
  std::vector<Candidate> all;
  for (MemoryPolicy& p : request.job->switched(request.switches)) {
    const NeedsLowerBound needs = needs_lower_bound(request, p);
    all.push_back(
        {std::move(p), excess(request, needs), seconds_lower_bound(needs, request.profile)});
  }
  std::ranges::stable_sort(all, {}, &Candidate::missing);
  std::optional<PlannedRun> best;
  std::optional<Refusal> closest;
  Bytes least;
  for (const Candidate& c : all) {
    if (best && (c.missing.count > 0 || best->seconds_per_step() <= c.lower_bound_seconds))
      continue;
    if (closest && c.missing.count > 0 && least <= c.missing) break;
    PlannedRun run = plan_run(request, c.policy);
    std::vector<Shortage> missing = shortages(request, run);
    if (missing.empty()) {
      if (!best || run.seconds_per_step() < best->seconds_per_step()) best = std::move(run);
      continue;
    }
    const Bytes now = excess(missing);
    if (best || (closest && least <= now)) continue;
    least = now;
    closest = refusal("the lowest-memory plan that the switches allow", std::move(run),
                      std::move(missing), refused);
  }
  if (best) return std::move(*best);
  return std::move(*closest);
}

Outcome outcome_of(const Request& request, NeedsCache& known, Wanted wanted, PlannedRun* refused) {
  // `known` describes one way of the job, fit_variants() searches several.
  if (auto variants = request.job->variants(); !variants.empty()) {
    return fit_variants(request, std::move(variants), wanted, refused);
  }
  if (request.policy) {
    const MemoryPolicy policy = request.job->adapted(*request.policy);
    if (wanted == Wanted::plan) {
      auto run = complete_if_fits(request, record(request, policy));
      if (run) return std::move(*run);
      return Refusal{};
    }
    PlannedRun run = plan_run(request, policy);
    std::vector<Shortage> missing = shortages(request, run);
    if (missing.empty()) return run;
    return refusal(request.policy->name, std::move(run), std::move(missing), refused);
  }
  if (request.switches.any() && !request.job->fills_with_switches())
    return fit_switched(request, refused);
  if (auto run = search_plan(request, known)) {
    return fill_host_memory(request, std::move(*run), known);
  }
  if (wanted == Wanted::plan) return Refusal{};
  return refuse(request, known, refused);
}

}  // namespace

Outcome find_plan(const Request& request) {
  NeedsCache known;
  return find_plan(request, known);
}

Outcome find_plan(const Request& request, NeedsCache& known, PlannedRun* refused) {
  return outcome_of(request, known, Wanted::plan_or_reason, refused);
}

}  // namespace ballast::fit
