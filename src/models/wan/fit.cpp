#include "models/wan/fit.h"

#include <algorithm>

#include "core/error.h"
#include "models/wan/fit_policies.h"
#include "models/wan/fit_switched.h"
#include "models/wan/job_needs.h"

namespace ballast::wan {
namespace {

std::int64_t tokens_of(const Batch& b) {
  std::int64_t sum = 0;
  for (const LatentSize& z : b.latents) sum += z.tokens();
  return sum;
}

// The same with the heaviest step and evaluation only: they decide the peaks in all but odd cases,
// and a run with many kinds of steps is searched as fast as one with a single kind.
FitRequest heaviest(const FitRequest& request) {
  FitRequest r = request;
  for (std::vector<Batch>* batches : {&r.job.batches, &r.job.eval_batches}) {
    if (batches->empty()) continue;
    std::swap(batches->front(), *std::ranges::max_element(*batches, {}, tokens_of));
    batches->resize(1);
  }
  return r;
}

PlannedRun complete(const FitRequest& request, RecordedJob recorded) {
  PlannedRun run;
  run.policy = recorded.policy;
  run.parts = std::move(recorded.parts);
  run.expert_changes = request.expert_changes;
  run.set = std::move(recorded.set);
  run.plan = plan_memory(run.set);
  run.lines = lines_for(request, run.set, run.plan.peak_of(Tier::host));
  for (int p = 0; p < static_cast<int>(run.set.programs.size()); ++p) {
    run.times.push_back(predict(run.set, run.plan, p, request.profile));
  }
  return run;
}

// As many groups resident as the budget allows. A group that stays may take more than its weights
// with it (gradients, moments), so what one more costs is learned from the plans that were too big.
PlannedRun fill_with_groups(const FitRequest& request, RecordedJob lean, const LeastNeeds& least) {
  // In full training what stays leaves host memory by as much as it takes of the device's.
  const bool ram_bounds = request.backend.device == Device::cpu && request.job.mode != Mode::full;
  Bytes most = request.budget.gpu;
  if (ram_bounds)
    most = std::min(most, request.budget.host - std::min(least.host, request.budget.host));
  const auto room = static_cast<double>((most - std::min(least.device, most)).count);
  const int all_but_one = group_count(request.job.config) - 1;
  MemoryPolicy policy = lean.policy;
  const auto with = [&](int groups) {
    policy.resident_groups = groups;
    return record(request, policy);
  };
  // The first that stays is the head, which is small: the next two say what a block takes.
  int groups = std::min(3, all_but_one);
  const auto taken = [&](const LeastNeeds& needs) {
    return static_cast<double>((needs.device - std::min(least.device, needs.device)).count);
  };
  double per_group =
      std::max(1.0, taken(least_needs(request, with(groups))) / std::max(1, groups - 1));
  groups = static_cast<int>(std::min(room / per_group + 1, static_cast<double>(all_but_one)));
  while (groups > 0) {
    RecordedJob fuller = with(groups);
    const LeastNeeds needs = least_needs(request, fuller);
    if (excess(request, needs).count == 0) {
      PlannedRun run = complete(request, std::move(fuller));
      if (shortages(request, run).empty()) return run;
    }
    int next = groups - 1;
    if (needs.device > most) {
      per_group = std::max(1.0, taken(needs) / groups);
      next = std::min(next, static_cast<int>(room / per_group) + 1);
    }
    groups = next;
  }
  return complete(request, std::move(lean));
}

// As many blocks keep all their activations as the budget allows.
PlannedRun fill_with_activations(const FitRequest& request, PlannedRun lean) {
  MemoryPolicy policy = lean.policy;
  int low = 0, high = static_cast<int>(request.job.config.layers);  // fits with low, not with high
  while (high - low > 1) {
    policy.kept_blocks = (low + high) / 2;
    PlannedRun fuller = plan_run(request, policy);
    if (shortages(request, fuller).empty()) {
      low = policy.kept_blocks;
      lean = std::move(fuller);
    } else {
      high = policy.kept_blocks;
    }
  }
  return lean;
}

// The policy with as many streamed blocks as were asked for; nothing: it is for other cases.
std::optional<MemoryPolicy> with_streamed_blocks(const FitRequest& request, MemoryPolicy policy) {
  if (!request.streamed_blocks) return policy;
  const std::int64_t blocks = *request.streamed_blocks, layers = request.job.config.layers;
  if (blocks == 0) {
    policy.slots = policy.parts = 0;
    return policy;
  }
  if (policy.slots == 0) return std::nullopt;
  // The head is the first group that stays, the embeddings are the last.
  policy.resident_groups = blocks == layers ? 0 : static_cast<int>(layers + 1 - blocks);
  return policy;
}

std::vector<MemoryPolicy> lean_policies(const FitRequest& request) {
  std::vector<MemoryPolicy> all;
  for (MemoryPolicy& p :
       request.switched() ? switched_policies(request) : leanest_policies(request.job)) {
    if (auto forced = with_streamed_blocks(request, std::move(p)))
      all.push_back(std::move(*forced));
  }
  return all;
}

}  // namespace

Bytes PlannedRun::lines_of(Tier t) const { return sum_lines(lines, t); }

double PlannedRun::seconds_of_step(std::size_t kind) const {
  const auto seconds = [&](std::string_view name) {
    double sum = 0;
    for (std::size_t p = 0; p < set.programs.size(); ++p) {
      if (set.programs[p].name == name) sum += times[p].seconds;
    }
    return sum;
  };
  double sum = seconds("grad_norm") + seconds("update") + seconds("zero_gradients");
  // What stays must be read anew when the other expert has its turn.
  sum += expert_changes * seconds("load.high_noise");
  for (const StepPart& part : parts[kind]) {
    sum += seconds(part.run == 0 ? "step" : fmt::format("step.{}", part.run));
  }
  return sum;
}

const PredictedTime& PlannedRun::step_time() const {
  return times[static_cast<std::size_t>(set.program_index("step"))];
}

PlannedRun plan_run(const FitRequest& request, const MemoryPolicy& policy) {
  return complete(request, record(request, policy));
}

std::vector<Shortage> shortages(const FitRequest& request, const PlannedRun& run) {
  std::vector<Shortage> all;
  const auto check_tier = [&](Tier tier, Bytes needed, Bytes allowed) {
    if (needed <= allowed) return;
    const ProgramUse* worst = &run.plan.programs.front();
    for (const ProgramUse& p : run.plan.programs) {
      if (p.tier(tier).peak > worst->tier(tier).peak) worst = &p;
    }
    all.push_back({.tier = tier,
                   .program = worst->name,
                   .at = worst->tier(tier).at,
                   .needed = needed,
                   .allowed = allowed,
                   .roles = worst->tier(tier).roles});
  };
  const Bytes device = run.needed(Tier::device);
  Bytes host = run.needed(Tier::host);
  if (request.backend.device == Device::cpu) host += device;
  check_tier(Tier::device, device, request.budget.gpu);
  check_tier(Tier::host, host, request.budget.host);
  check_tier(Tier::disk, run.needed(Tier::disk), request.budget.disk);
  return all;
}

namespace {

Refusal refusal(std::string policy, const PlannedRun& run, std::vector<Shortage> missing) {
  return {.policy = std::move(policy),
          .needed = {run.needed(Tier::device), run.needed(Tier::host), run.needed(Tier::disk)},
          .shortages = std::move(missing),
          .seconds_per_step = run.seconds_per_step()};
}

}  // namespace

std::int64_t streamed_blocks(const Config& config, const MemoryPolicy& policy) {
  if (policy.slots == 0) return 0;
  std::int64_t count = 0;
  for (std::int64_t b = 0; b < config.layers; ++b) {
    count += !evenly_chosen(block_group(b), group_count(config), policy.resident_groups);
  }
  return count;
}

MemoryPolicy closest_policy(const FitRequest& request) {
  if (request.policy) return *request.policy;
  const FitRequest search = heaviest(request);
  std::optional<MemoryPolicy> closest;
  Bytes least;
  for (MemoryPolicy& policy : lean_policies(search)) {
    const Bytes missing = excess(search, least_needs(search, policy));
    if (closest && least <= missing) continue;
    least = missing;
    closest = std::move(policy);
  }
  return *closest;
}

namespace {

Refusal refuse(const FitRequest& request) {
  const PlannedRun run = plan_run(request, closest_policy(request));
  return refusal("the leanest policy", run, shortages(request, run));
}

}  // namespace

Bytes excess(const std::vector<Shortage>& missing) {
  Bytes sum;
  for (const Shortage& s : missing) sum += s.needed - s.allowed;
  return sum;
}

namespace {

constexpr int kFewGroups = 8;

enum class Chance : std::uint8_t {
  none,
  slight,     // a few tensors less might do
  by_length,  // shorter programs might
  good,
};

// By the leanest policies. In full training every group that stays takes its state from the host to
// the device, so host needs shrink with what is resident and the device decides.
Chance chance(const FitRequest& search) {
  const bool full = search.job.mode == Mode::full && !search.streamed_blocks;
  Chance best = Chance::none;
  for (const MemoryPolicy& p : lean_policies(search)) {
    const LeastNeeds needs = least_needs(search, p);
    const Bytes missing = excess(search, needs);
    if (missing.count == 0 || (full && p.slots > 0 && needs.device <= search.budget.gpu)) {
      return Chance::good;
    }
    const std::uint64_t tensors = (needs.device + needs.host).count;
    if (missing <= needs.recorded) {
      best = Chance::by_length;
    } else if (missing <= needs.recorded + Bytes{tensors / 16}) {
      best = std::max(best, Chance::slight);
    }
  }
  return best;
}

// On the device, in the job's format: no less.
Bytes least_weight_bytes(const FitRequest& request) {
  const bool as_stored = request.job.format == WeightFormat::stored;
  Bytes sum;
  for (const WeightGroup& g : request.experts.front()) {
    for (const StoredTensor& t : g.tensors) {
      sum += Bytes{static_cast<std::uint64_t>(t.data.shape.elements()) *
                   (as_stored ? size_of(t.data.dtype) : 1)};
    }
  }
  return sum;
}

class Search {
 public:
  explicit Search(const FitRequest& request)
      : request_(request),
        search_(heaviest(request)),
        all_kinds_(request.job.batches.size() + request.job.eval_batches.size() >
                   search_.job.batches.size() + search_.job.eval_batches.size()),
        weights_(least_weight_bytes(request)) {}

  std::optional<PlannedRun> run() {
    const Chance c = chance(search_);
    if (c == Chance::good) {
      for (const std::vector<MemoryPolicy>& list : candidates(search_.job)) {
        for (const MemoryPolicy& p : list) consider(p);
        if (best_) break;
      }
    }
    if (best_ || c == Chance::none) return std::move(best_);
    const bool length_decides = c != Chance::slight;
    for (const MemoryPolicy& p : last_resort(search_.job, length_decides)) {
      consider(p);
      if (best_) return std::move(best_);
    }
    // With few groups every number of resident ones can be tried.
    const int groups = group_count(search_.job.config);
    if (groups > kFewGroups || request_.streamed_blocks) return std::move(best_);
    for (MemoryPolicy p : last_resort(search_.job, length_decides)) {
      if (p.slots == 0) continue;
      for (const WeightHome home : {WeightHome::disk, WeightHome::host}) {
        if (home == WeightHome::disk && search_.job.mode == Mode::full) continue;
        p.home = home;
        for (p.resident_groups = 0; p.resident_groups < groups; ++p.resident_groups) {
          if (excess(search_, least_needs(search_, p)).count > 0) continue;
          PlannedRun run = plan_run(request_, p);
          if (shortages(request_, run).empty()) return run;
        }
      }
    }
    return std::nullopt;
  }

 private:
  // Of the weights, were all the memory that a plan leaves filled with them.
  double least_streamed_share(const LeastNeeds& least) const {
    const Bytes room = request_.budget.gpu - std::min(least.device, request_.budget.gpu);
    return std::max(0.0, 1 - static_cast<double>(room.count) / static_cast<double>(weights_.count));
  }

  // Whether there is no place for the weights, whatever else is needed.
  bool too_heavy(const MemoryPolicy& p) const {
    if (p.slots == 0) return weights_ > request_.budget.gpu;
    return p.home == WeightHome::host && weights_ > request_.budget.gpu + request_.budget.host;
  }

  // Whether a plan that waits for nothing is there, and this one would have no less to compute.
  bool computes_no_less(const MemoryPolicy& p) const {
    return best_ && 0.98 * best_seconds_ <= best_compute_ &&
           p.activations >= best_->policy.activations && p.halves >= best_->policy.halves;
  }

  void consider(const MemoryPolicy& candidate) {
    const auto policy = with_streamed_blocks(request_, candidate);
    if (!policy || too_heavy(*policy) || computes_no_less(*policy)) return;
    // Recording a few blocks takes milliseconds, recording and packing all of them a hundred: most
    // candidates fall here.
    const LeastNeeds least = least_needs(search_, *policy);
    const bool fills = policy->slots > 0 && !request_.streamed_blocks;
    const bool host_may_shrink = fills && request_.job.mode == Mode::full;
    if (host_may_shrink ? least.device > request_.budget.gpu : excess(search_, least).count > 0) {
      return;
    }
    // No plan is faster than its busiest lane.
    const double streamed = fills ? least_streamed_share(least) : 1;
    const double soonest = std::max(least.compute_seconds, streamed * least.transfer_seconds);
    if (best_ && soonest > 0.98 * best_seconds_) return;
    RecordedJob recorded = record(search_, *policy);
    std::optional<PlannedRun> run = fills ? fill_with_groups(search_, std::move(recorded), least)
                                          : complete(search_, std::move(recorded));
    if (!shortages(search_, *run).empty()) return;
    if (policy->slots == 0 && policy->activations == Activations::attention_kept &&
        !policy->offload) {
      run = fill_with_activations(search_, std::move(*run));
    }
    const double seconds = run->seconds_per_step();
    if (best_ && best_seconds_ <= seconds) return;
    if (all_kinds_) {
      run = plan_run(request_, run->policy);
      // Recordings of the other kinds take memory, too.
      while (fills && run->policy.resident_groups > 0 && !shortages(request_, *run).empty()) {
        MemoryPolicy fewer = run->policy;
        --fewer.resident_groups;
        run = plan_run(request_, fewer);
      }
      if (!shortages(request_, *run).empty()) return;
    }
    best_seconds_ = seconds;
    best_compute_ = least.compute_seconds;
    best_ = std::move(run);
  }

  const FitRequest& request_;
  const FitRequest search_;  // with the heaviest step only
  const bool all_kinds_;
  const Bytes weights_;
  std::optional<PlannedRun> best_;
  double best_seconds_ = 0;  // of the heaviest step
  double best_compute_ = 0;  // of it, at least
};

}  // namespace

bool may_fit(const FitRequest& request) { return chance(heaviest(request)) == Chance::good; }

std::variant<PlannedRun, Refusal> fit(const FitRequest& request) {
  if (request.policy) {
    PlannedRun run = plan_run(request, *request.policy);
    std::vector<Shortage> missing = shortages(request, run);
    if (missing.empty()) return run;
    return refusal(request.policy->name, run, std::move(missing));
  }
  if (request.switched()) return fit_switched(request);
  if (auto run = Search(request).run()) return std::move(*run);
  return refuse(request);
}

}  // namespace ballast::wan
