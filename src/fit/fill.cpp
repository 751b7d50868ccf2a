#include "fit/fill.h"

#include <algorithm>
#include <utility>

#include "core/to_size.h"
#include "fit/fit.h"
#include "fit/tuning.h"
#include "plan/offsets.h"

namespace ballast::fit {
namespace {

PlannedRun placed(const Request& request, Recording recorded) {
  PlannedRun run;
  run.job = request.job;
  run.policy = std::move(recorded.policy);
  run.steps = std::move(recorded.steps);
  run.set = std::move(recorded.set);
  run.plan = plan_offsets(run.set);
  run.lines = lines_for(request, run.set, run.plan.peak_of(Tier::host));
  return run;
}

void add_times(const Request& request, PlannedRun& run) {
  plan_waits(run.set, run.plan);
  const MachineProfile profile = rates_under(run.policy, request.profile);
  run.times.resize(run.set.programs.size());  // without rates nothing is predicted
  if (profile.gemm_flops <= 0) return;
  for (int p = 0; p < static_cast<int>(run.set.programs.size()); ++p) {
    run.times[to_size(p)] = predict(run.set, run.plan, p, profile);
  }
}

}  // namespace

MachineProfile rates_under(const MemoryPolicy& policy, MachineProfile profile) {
  if (policy.stream().extra_ring_buffers > 0) profile.disk_bandwidth *= tuning::kIntoALargeRing;
  return profile;
}

Timeline timeline_of(const Request& request, const PlannedRun& run, int program) {
  Timeline timeline;
  const MachineProfile profile = rates_under(run.policy, request.profile);
  if (profile.gemm_flops > 0) predict(run.set, run.plan, program, profile, &timeline);
  return timeline;
}

PlannedRun complete(const Request& request, Recording recorded) {
  PlannedRun run = placed(request, std::move(recorded));
  add_times(request, run);
  return run;
}

bool fits(const Request& request, Recording recorded) {
  return shortages(request, placed(request, std::move(recorded))).empty();
}

std::optional<PlannedRun> complete_if_fits(const Request& request, Recording recorded,
                                           std::vector<Shortage>* missing) {
  PlannedRun run = placed(request, std::move(recorded));
  if (auto short_of = shortages(request, run); !short_of.empty()) {
    if (missing) *missing = std::move(short_of);
    return std::nullopt;
  }
  add_times(request, run);
  return run;
}

namespace {

// Where a group that stays may take as much as several others: halving the number, by live bytes.
// Packing takes a little more than those.
std::optional<PlannedRun> fill_by_halving(const Request& request, MemoryPolicy policy) {
  const auto needs_with = [&](int n) {
    policy.keep_groups(n);
    return needs_lower_bound(request, record(request, policy));
  };
  int low = -1, high = request.job->group_count();  // fits with low, not with high
  while (high - low > 1) {
    const int n = (low + high) / 2;
    const NeedsLowerBound needs = needs_with(n);
    // In host memory less is needed the more stays.
    const bool fits = request.backend.device == Device::cpu ? excess(request, needs).count == 0
                                                            : needs.device <= request.budget.gpu;
    (fits ? low : high) = n;
  }
  constexpr int kTries = tuning::kMaxGroupsRemoved;
  for (int n = low; n >= 0 && n > low - kTries; --n) {
    policy.keep_groups(n);
    Recording recorded = record(request, policy);
    // Fewer that stay need no less of the host.
    if (excess(request, needs_lower_bound(request, recorded)).count > 0) return std::nullopt;
    if (auto run = complete_if_fits(request, std::move(recorded))) return run;
  }
  policy.keep_groups(0);
  if (low < kTries) return std::nullopt;  // so many were tried
  return complete_if_fits(request, record(request, policy));
}

}  // namespace

std::optional<PlannedRun> fill_with_groups(const Request& request, const MemoryPolicy& lean,
                                           NeedsCache& known, double seconds) {
  if (request.job->depth() != request.job->blocks()) return fill_by_halving(request, lean);
  const NeedsLowerBound least = known.needs_for(request, lean);
  // In full training what stays leaves host memory by as much as it takes of the device's.
  const bool ram_bounds =
      request.backend.device == Device::cpu && request.job->trained() != Trained::weights;
  const bool in_host = request.job->stays_in_host_memory(lean);
  const auto where_they_stay = [&](const NeedsLowerBound& n) {
    return in_host ? n.host : n.device;
  };
  Bytes most = in_host ? request.budget.host : request.budget.gpu;
  if (ram_bounds)
    most = std::min(most, request.budget.host - std::min(least.host, request.budget.host));
  const auto room = static_cast<double>((most - std::min(where_they_stay(least), most)).count);
  const int all_but_one = request.job->group_count() - 1;
  MemoryPolicy policy = lean;
  const auto taken = [&](const NeedsLowerBound& needs, const NeedsLowerBound& without) {
    const Bytes with = where_they_stay(needs);
    return static_cast<double>((with - std::min(where_they_stay(without), with)).count);
  };
  // The first that stays is the head, which is small: the next two say what a block takes.
  int groups = std::min(3, all_but_one);
  policy.keep_groups(groups);
  double per_group =
      taken(known.needs_of_few_blocks(request, policy), known.needs_of_few_blocks(request, lean)) /
      std::max(1, groups - 1);
  per_group = std::max(1.0, per_group);
  groups = static_cast<int>(std::min(room / per_group + 1, static_cast<double>(all_but_one)));
  while (groups > 0) {
    policy.keep_groups(groups);
    if (groups == 1) {  // the last number that is tried: most are too many without being recorded
      const auto bound = known.needs_resident(request, policy);
      if (bound && where_they_stay(*bound) > most) break;
    }
    Recording fuller = record(request, policy);
    const NeedsLowerBound needs = needs_lower_bound(request, fuller);
    if (excess(request, needs).count == 0) {
      if (seconds_lower_bound(needs, request.profile) >= seconds) return std::nullopt;
      if (auto run = complete_if_fits(request, std::move(fuller))) return run;
    }
    int next = groups - 1;
    const bool shared = request.backend.device == Device::cpu;
    if (!shared && !in_host && needs.device <= most && needs.host > request.budget.host) {
      return std::nullopt;
    }
    if (where_they_stay(needs) > most) {
      per_group = std::max(1.0, taken(needs, least) / groups);
      next = std::min(next, static_cast<int>(room / per_group) + 1);
    }
    groups = next;
  }
  return complete_if_fits(request, record(request, lean));
}

PlannedRun fill_with_activations(const Request& request, PlannedRun lean) {
  MemoryPolicy policy = lean.policy;
  int low = policy.kept_blocks,
      high = static_cast<int>(request.job->max_kept_blocks());  // fits with low, not with high
  while (high - low > 1) {
    policy.kept_blocks = (low + high) / 2;
    Recording recorded = record(request, policy);
    if (excess(request, needs_lower_bound(request, recorded)).count == 0) {
      if (auto fuller = complete_if_fits(request, std::move(recorded))) {
        low = policy.kept_blocks;
        if (fuller->seconds_per_step() <= lean.seconds_per_step()) lean = std::move(*fuller);
        continue;
      }
    }
    high = policy.kept_blocks;
  }
  return lean;
}

}  // namespace ballast::fit
