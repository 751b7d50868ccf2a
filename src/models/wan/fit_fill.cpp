#include "models/wan/fit_fill.h"

#include <algorithm>
#include <utility>

#include "nn/staging_ring.h"
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
  for (int p = 0; p < static_cast<int>(run.set.programs.size()); ++p) {
    run.times.push_back(predict(run.set, run.plan, p, request.profile));
  }
}

// For how much of its time a program that is run again and again computes nothing.
double waiting_share(const PlannedRun& run) {
  double most = 0;
  for (std::size_t p = 0; p < run.times.size(); ++p) {
    const PredictedTime& time = run.times[p];
    if (time.seconds <= 0 || run.set.programs[p].name.starts_with("load")) continue;
    most = std::max(most, time.exposed_stall / time.seconds);
  }
  return most;
}

// No step is faster than its busiest lane.
double busiest_lane(const LeastNeeds& n) { return std::max(n.compute_seconds, n.transfer_seconds); }

}  // namespace

PlannedRun complete(const FitRequest& request, RecordedJob recorded) {
  PlannedRun run = placed(request, std::move(recorded));
  add_times(request, run);
  return run;
}

bool fits(const FitRequest& request, RecordedJob recorded) {
  return shortages(request, placed(request, std::move(recorded))).empty();
}

std::optional<PlannedRun> complete_if_fits(const FitRequest& request, RecordedJob recorded) {
  PlannedRun run = placed(request, std::move(recorded));
  if (!shortages(request, run).empty()) return std::nullopt;
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
      if (busiest_lane(needs) >= seconds) return std::nullopt;
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

namespace {

// Of the groups that do not stay: how many there are, and the largest.
struct Streamed {
  std::uint64_t count = 0;
  Bytes largest{1};
};
Streamed streamed_groups(const FitRequest& request, const MemoryPolicy& policy) {
  Streamed s;
  const std::vector<Bytes> groups = least_group_bytes(request);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (evenly_chosen(static_cast<std::int64_t>(g), std::ssize(groups), policy.resident_groups)) {
      continue;
    }
    s.largest = std::max(s.largest, groups[g]);
    ++s.count;
  }
  return s;
}

// Whether a step that waits for the disk gains by n groups that come from host memory instead.
bool worthwhile(const PlannedRun& run, const Streamed& all, std::uint64_t n) {
  constexpr double kOfAStep = 0.03;  // no plan is made for less
  const double share = static_cast<double>(n) / static_cast<double>(std::max(all.count, n));
  return n > 0 && share * waiting_share(run) >= kOfAStep;
}

// While a step computes with what stands in its slots, the disk has nowhere to read to but the
// ring, which takes what no block has room in.
constexpr int kMostBuffers = 160;  // a large block
int more_buffers(Bytes left) {
  constexpr Bytes kNotKnown{16u << 20};  // what recordings may take more
  const Bytes sure = left - std::min(left, kNotKnown);
  return static_cast<int>(
      std::min<std::uint64_t>(kMostBuffers, sure.count / StagingRing::kStreaming.buffer));
}

struct HostRoom {
  Bytes all, group;
};

// One less, then half as many, where recordings and the GPU's map of so much memory find no place.
std::optional<PlannedRun> with_host_groups(const FitRequest& request, MemoryPolicy policy,
                                           const HostRoom& room, std::uint64_t n) {
  for (bool first = true;; n = std::exchange(first, false) ? n - 1 : n / 2) {
    policy.host_groups = static_cast<int>(n);
    policy.more_buffers = more_buffers(room.all - Bytes{n * room.group.count});
    if (n == 0 && policy.more_buffers == 0) return std::nullopt;
    if (auto run = complete_if_fits(request, record(request, policy))) return run;
    if (n == 0) return std::nullopt;
  }
}

// Whether a step takes longer than its busiest lane, and a larger ring could change that.
bool wants_ring(const PlannedRun& run) {
  constexpr double kLonger = 1.03;
  const PredictedTime& step = run.step_time();
  return run.policy.more_buffers < kMostBuffers &&
         step.seconds > kLonger * std::ranges::max(step.busy);
}

}  // namespace

PlannedRun fill_host_memory(const FitRequest& request, PlannedRun lean) {
  if (lean.policy.slots == 0 || lean.policy.home == WeightHome::host) return lean;
  Bytes used = lean.needed(Tier::host);
  if (request.backend.device == Device::cpu) used += lean.needed(Tier::device);
  const Bytes room = request.budget.host - std::min(used, request.budget.host);
  const Streamed all = streamed_groups(request, lean.policy);
  const auto groups_in = [&](Bytes b) { return std::min(b.count / all.largest.count, all.count); };
  const std::uint64_t n = groups_in(room);
  const auto take_if_faster = [&](std::optional<PlannedRun> other, double share) {
    const bool taken = other && other->seconds_per_step() < share * lean.seconds_per_step();
    if (taken) lean = std::move(*other);
    return taken;
  };
  HostRoom place = {room, all.largest};
  if (worthwhile(lean, all, n)) {
    take_if_faster(with_host_groups(request, lean.policy, place, n), 1);
  }
  // What blocks keep until their backward pass waits there as well: attention that is computed
  // again leaves its place to weights. That it takes longer is surer than what it gains.
  MemoryPolicy again = lean.policy;
  again.activations = Activations::recomputed;
  const Bytes kept = kept_at_least(request.job, lean.policy).host;
  const HostRoom more = {room + kept - std::min(kept, kept_at_least(request.job, again).host),
                         all.largest};
  const std::uint64_t groups = groups_in(more.all);
  if (worthwhile(lean, all, groups - n) &&
      take_if_faster(with_host_groups(request, again, more, groups), 0.99)) {
    place = more;
  }
  if (wants_ring(lean)) {  // which may be worth more than the last block
    const auto fewer = static_cast<std::uint64_t>(std::max(1, lean.policy.host_groups) - 1);
    take_if_faster(with_host_groups(request, lean.policy, place, fewer), 1);
  }
  return lean;
}

}  // namespace ballast::wan
