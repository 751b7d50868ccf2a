#include "models/wan/fit_fill.h"

#include <algorithm>
#include <utility>

#include "nn/block_weights.h"
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

// Of the groups that do not stay: how many there are, and what the largest takes in host memory.
struct Streamed {
  std::uint64_t count = 0;
  Bytes largest{1};
};
Streamed streamed_groups(const FitRequest& request, const MemoryPolicy& policy) {
  Streamed s;
  const std::vector<WeightGroup>& groups = request.experts.front();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (evenly_chosen(static_cast<std::int64_t>(g), std::ssize(groups), policy.resident_groups)) {
      continue;
    }
    s.largest = std::max(s.largest, BlockWeights::streamed_bytes(groups[g], request.job.format));
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
constexpr int kMostBuffers = 160;  // with the usual ones a block of the 14B model
int more_buffers(Bytes left) {
  constexpr Bytes kNotKnown{16u << 20};  // what recordings may take more
  const Bytes sure = left - std::min(left, kNotKnown);
  return static_cast<int>(
      std::min<std::uint64_t>(kMostBuffers, sure.count / StagingRing::kStreaming.buffer));
}

// n groups from host memory in so much room, and a ring in what they leave. Without that, one less,
// then half as many where recordings and the GPU's map of so much memory find no place.
std::optional<PlannedRun> with_host_groups(const FitRequest& request, MemoryPolicy policy,
                                           const Streamed& all, Bytes room, std::uint64_t n) {
  policy.host_groups = static_cast<int>(n);
  const bool from_disk = n + 1 < all.count;  // more than the embeddings or the head
  policy.more_buffers = from_disk ? more_buffers(room - Bytes{n * all.largest.count}) : 0;
  if (policy.more_buffers > 0) {
    if (auto run = complete_if_fits(request, record(request, policy))) return run;
    policy.more_buffers = 0;
  }
  for (bool first = true; n > 0; n = std::exchange(first, false) ? n - 1 : n / 2) {
    policy.host_groups = static_cast<int>(n);
    if (auto run = complete_if_fits(request, record(request, policy))) return run;
  }
  return std::nullopt;
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
  // Takes the policy with so many groups if that is faster, and then, or else, with one less where
  // a larger ring may be worth that. No more than two recordings are there at once.
  const auto try_groups = [&](const MemoryPolicy& policy, Bytes place, std::uint64_t most,
                              double share) {
    for (const bool larger_ring : {false, true}) {
      auto run = with_host_groups(request, policy, all, place, most);
      if (!run) return;
      const bool last = run->policy.host_groups == 0 || !wants_ring(*run) || larger_ring;
      most = static_cast<std::uint64_t>(std::max(1, run->policy.host_groups)) - 1;
      if (run->seconds_per_step() < share * lean.seconds_per_step()) {
        lean = std::move(*run);
        share = 1;
      }
      if (last) return;
    }
  };
  // What blocks keep until their backward pass waits there as well: attention that is computed
  // again leaves its place to weights. That it takes longer is surer than what it gains.
  const MemoryPolicy before = lean.policy;
  MemoryPolicy again = before;
  again.activations = Activations::recomputed;
  const Bytes kept = kept_at_least(request.job, before).host;
  const Bytes more = kept - std::min(kept, kept_at_least(request.job, again).host);
  const std::uint64_t groups = groups_in(room + more);
  const bool ring_alone = wants_ring(lean) && !worthwhile(lean, all, groups - n);
  if (worthwhile(lean, all, n) || ring_alone) try_groups(before, room, n, 1);
  if (worthwhile(lean, all, groups - n)) try_groups(again, room + more, groups, 0.99);
  return lean;
}

}  // namespace ballast::wan
