#include "models/wan/fit_fill.h"

#include <algorithm>
#include <utility>

#include "plan/places.h"

namespace ballast::wan {
namespace {

PlannedRun placed(const FitRequest& request, RecordedJob recorded) {
  PlannedRun run;
  run.policy = recorded.policy;
  run.parts = std::move(recorded.parts);
  run.expert_changes = request.expert_changes;
  run.distil = request.job.distil;
  if (!request.companion.ways.empty()) run.companion_way = request.companion.chosen();
  if (request.teacher && request.teacher->policy) run.teacher_policy = *request.teacher->policy;
  run.set = std::move(recorded.set);
  run.plan = plan_places(run.set);
  run.lines = lines_for(request, run.set, run.plan.peak_of(Tier::host));
  return run;
}

void add_times(const FitRequest& request, PlannedRun& run) {
  plan_waits(run.set, run.plan);
  const MachineProfile profile = rates_under(run.policy, request.profile);
  for (int p = 0; p < static_cast<int>(run.set.programs.size()); ++p) {
    run.times.push_back(predict(run.set, run.plan, p, profile));
  }
}

}  // namespace

MachineProfile rates_under(const MemoryPolicy& policy, MachineProfile profile) {
  if (policy.more_buffers > 0) profile.disk_bandwidth *= kIntoALargeRing;
  return profile;
}

PlannedRun complete(const FitRequest& request, RecordedJob recorded) {
  PlannedRun run = placed(request, std::move(recorded));
  add_times(request, run);
  return run;
}

bool fits(const FitRequest& request, RecordedJob recorded) {
  return shortages(request, placed(request, std::move(recorded))).empty();
}

std::optional<PlannedRun> complete_if_fits(const FitRequest& request, RecordedJob recorded,
                                           std::vector<Shortage>* missing) {
  PlannedRun run = placed(request, std::move(recorded));
  if (auto short_of = shortages(request, run); !short_of.empty()) {
    if (missing) *missing = std::move(short_of);
    return std::nullopt;
  }
  add_times(request, run);
  return run;
}

std::optional<PlannedRun> fill_with_groups(const FitRequest& request, const MemoryPolicy& lean,
                                           KnownNeeds& known, double seconds) {
  const LeastNeeds least = known.of(request, lean);
  // In full training what stays leaves host memory by as much as it takes of the device's.
  const bool ram_bounds = request.backend.device == Device::cpu && request.job.mode != Mode::full;
  Bytes most = request.budget.gpu;
  if (ram_bounds)
    most = std::min(most, request.budget.host - std::min(least.host, request.budget.host));
  const auto room = static_cast<double>((most - std::min(least.device, most)).count);
  const int all_but_one = group_count(request.job.config) - 1;
  MemoryPolicy policy = lean;
  const auto taken = [](const LeastNeeds& needs, const LeastNeeds& without) {
    return static_cast<double>((needs.device - std::min(without.device, needs.device)).count);
  };
  // The first that stays is the head, which is small: the next two say what a block takes.
  int groups = std::min(3, all_but_one);
  policy.resident_groups = groups;
  double per_group =
      taken(known.of_few_blocks(request, policy), known.of_few_blocks(request, lean)) /
      std::max(1, groups - 1);
  per_group = std::max(1.0, per_group);
  groups = static_cast<int>(std::min(room / per_group + 1, static_cast<double>(all_but_one)));
  while (groups > 0) {
    policy.resident_groups = groups;
    if (groups == 1) {  // the last number that is tried: most are too many without being recorded
      const auto bound = known.of_staying(request, policy);
      if (bound && bound->device > most) break;
    }
    RecordedJob fuller = record(request, policy);
    const LeastNeeds needs = least_needs(request, fuller);
    if (excess(request, needs).count == 0) {
      if (least_seconds(needs, request.profile) >= seconds) return std::nullopt;
      if (auto run = complete_if_fits(request, std::move(fuller))) return run;
    }
    int next = groups - 1;
    const bool shared = request.backend.device == Device::cpu;
    if (!shared && needs.device <= most && needs.host > request.budget.host) return std::nullopt;
    if (needs.device > most) {
      per_group = std::max(1.0, taken(needs, least) / groups);
      next = std::min(next, static_cast<int>(room / per_group) + 1);
    }
    groups = next;
  }
  return complete_if_fits(request, record(request, lean));
}

PlannedRun fill_with_activations(const FitRequest& request, PlannedRun lean) {
  MemoryPolicy policy = lean.policy;
  int low = 0, high = static_cast<int>(request.job.config.layers);  // fits with low, not with high
  while (high - low > 1) {
    policy.kept_blocks = (low + high) / 2;
    RecordedJob recorded = record(request, policy);
    if (excess(request, least_needs(request, recorded)).count == 0) {
      if (auto fuller = complete_if_fits(request, std::move(recorded))) {
        low = policy.kept_blocks;
        lean = std::move(*fuller);
        continue;
      }
    }
    high = policy.kept_blocks;
  }
  return lean;
}

}  // namespace ballast::wan
