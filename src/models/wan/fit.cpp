#include "models/wan/fit.h"

#include <algorithm>
#include <limits>

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
  run.set = std::move(recorded.set);
  run.plan = plan_memory(run.set);
  run.lines = lines_for(request, run.set, run.plan.peak_of(Tier::host));
  for (int p = 0; p < static_cast<int>(run.set.programs.size()); ++p) {
    run.times.push_back(predict(run.set, run.plan, p, request.profile));
  }
  return run;
}

// No step is faster than its busiest lane.
double busiest_lane(const LeastNeeds& n) { return std::max(n.compute_seconds, n.transfer_seconds); }

// As many groups resident as the budget allows. A group that stays may take more than its weights
// with it (gradients, moments), so what one more costs is learned from the plans that were too big.
// Nothing: its lanes are busy for longer than `seconds` even so, or host memory is short where one
// more is too much for the device; fewer only need more of both.
std::optional<PlannedRun> fill_with_groups(const FitRequest& request, const MemoryPolicy& lean,
                                           const LeastNeeds& least, double seconds) {
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
      taken(needs_of_few_blocks(request, policy), needs_of_few_blocks(request, lean)) /
      std::max(1, groups - 1);
  per_group = std::max(1.0, per_group);
  groups = static_cast<int>(std::min(room / per_group + 1, static_cast<double>(all_but_one)));
  while (groups > 0) {
    policy.resident_groups = groups;
    RecordedJob fuller = record(request, policy);
    const LeastNeeds needs = least_needs(request, fuller);
    if (excess(request, needs).count == 0) {
      if (busiest_lane(needs) >= seconds) return std::nullopt;
      PlannedRun run = complete(request, std::move(fuller));
      if (shortages(request, run).empty()) return run;
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
  return plan_run(request, lean);
}

// As many blocks keep all their activations as the budget allows.
PlannedRun fill_with_activations(const FitRequest& request, PlannedRun lean) {
  MemoryPolicy policy = lean.policy;
  int low = 0, high = static_cast<int>(request.job.config.layers);  // fits with low, not with high
  while (high - low > 1) {
    policy.kept_blocks = (low + high) / 2;
    RecordedJob recorded = record(request, policy);
    if (excess(request, least_needs(request, recorded)).count == 0) {
      PlannedRun fuller = complete(request, std::move(recorded));
      if (shortages(request, fuller).empty()) {
        low = policy.kept_blocks;
        lean = std::move(fuller);
        continue;
      }
    }
    high = policy.kept_blocks;
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
  // Half of the steps are the other expert's at most; what stays must then be read anew.
  sum += 0.5 * seconds("load.high_noise");
  for (const StepPart& part : parts[kind]) sum += seconds(step_program(part.run));
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
  KnownNeeds known;
  return closest_policy(request, known);
}

MemoryPolicy closest_policy(const FitRequest& request, KnownNeeds& known) {
  if (request.policy) return *request.policy;
  const FitRequest search = heaviest(request);
  std::optional<MemoryPolicy> closest;
  Bytes least;
  for (MemoryPolicy& policy : lean_policies(search)) {
    const Bytes missing = excess(search, known.of(search, policy));
    if (closest && least <= missing) continue;
    least = missing;
    closest = std::move(policy);
  }
  return *closest;
}

namespace {

Refusal refuse(const FitRequest& request, KnownNeeds& known) {
  const PlannedRun run = plan_run(request, closest_policy(request, known));
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

// For weights that are not read from disk again and again, and all that training keeps with them.
Bytes largest_place(const FitRequest& r) {
  if (r.job.mode != Mode::full) return Bytes{~0ull};
  return r.backend.device == Device::cpu ? r.budget.host : r.budget.gpu + r.budget.host;
}

// By the leanest policies. In full training every group that stays takes its state from the host to
// the device, so host needs shrink with what is resident and the device decides.
Chance chance(const FitRequest& search, KnownNeeds& known) {
  if (least_state_bytes(search) > largest_place(search)) return Chance::none;
  const bool full = search.job.mode == Mode::full && !search.streamed_blocks;
  Chance best = Chance::none;
  for (const MemoryPolicy& p : lean_policies(search)) {
    const LeastNeeds needs = known.of(search, p);
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

class Search {
 public:
  Search(const FitRequest& request, KnownNeeds& known)
      : request_(request),
        search_(heaviest(request)),
        known_(known),
        all_kinds_(request.job.batches.size() + request.job.eval_batches.size() >
                   search_.job.batches.size() + search_.job.eval_batches.size()),
        state_(least_state_bytes(request)) {}

  std::optional<PlannedRun> run() {
    if (!all_kinds_) return look();
    // Where the heaviest step fits the others do in all but odd cases, so that all kinds are
    // planned for the best policy only; in odd cases for every one that would be it.
    if (auto best = look()) {
      if (auto all = with_all_kinds(best->policy)) return all;
      best_.reset();
      plans_all_kinds_ = true;
      return look();
    }
    return std::nullopt;
  }

 private:
  std::optional<PlannedRun> look() {
    const Chance c = chance(search_, known_);
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
          if (excess(search_, known_.of(search_, p)).count > 0) continue;
          PlannedRun run = plan_run(request_, p);
          if (shortages(request_, run).empty()) return run;
        }
      }
    }
    return std::nullopt;
  }

  // With as many groups less as the recordings of the other kinds take room.
  std::optional<PlannedRun> with_all_kinds(MemoryPolicy policy) const {
    const bool fills = policy.slots > 0 && !request_.streamed_blocks;
    while (true) {
      RecordedJob recorded = record(request_, policy);
      if (excess(request_, least_needs(request_, recorded)).count == 0) {
        PlannedRun run = complete(request_, std::move(recorded));
        if (shortages(request_, run).empty()) return run;
      }
      if (!fills || policy.resident_groups == 0) return std::nullopt;
      --policy.resident_groups;
    }
  }

  // Of the weights, were all the memory that a plan leaves filled with them and what they bring.
  double least_streamed_share(const LeastNeeds& least) const {
    const Bytes room = request_.budget.gpu - std::min(least.device, request_.budget.gpu);
    return std::max(0.0, 1 - static_cast<double>(room.count) / static_cast<double>(state_.count));
  }

  // In full training the update brings what does not stay from host memory.
  double least_update_seconds(const LeastNeeds& least) const {
    if (request_.job.mode != Mode::full || !request_.job.record_update) return 0;
    const Bytes room = request_.budget.gpu - std::min(least.device, request_.budget.gpu);
    const Bytes brought = state_ - std::min(room, state_);
    return static_cast<double>(brought.count) / request_.profile.upload_bandwidth;
  }

  // Whether there is no place for the weights, whatever else is needed.
  bool too_heavy(const MemoryPolicy& p) const {
    if (p.slots == 0) return state_ > request_.budget.gpu;
    return p.home == WeightHome::host && state_ > request_.budget.gpu + request_.budget.host;
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
    const bool fills = policy->slots > 0 && !request_.streamed_blocks;
    const bool host_may_shrink = fills && request_.job.mode == Mode::full;
    if (!host_may_shrink && known_.surely_over(search_, *policy)) return;
    const LeastNeeds least = known_.of(search_, *policy);
    if (host_may_shrink ? least.device > request_.budget.gpu : excess(search_, least).count > 0) {
      return;
    }
    const double streamed = fills ? least_streamed_share(least) : 1;
    const double update = least_update_seconds(least);
    const double soonest =
        std::max(least.compute_seconds, streamed * least.transfer_seconds) + update;
    if (best_ && soonest > 0.98 * best_seconds_) return;
    const double most = best_ ? best_seconds_ - update : std::numeric_limits<double>::infinity();
    std::optional<PlannedRun> run =
        fills ? fill_with_groups(search_, *policy, least, most) : plan_run(search_, *policy);
    if (!run || !shortages(search_, *run).empty()) return;
    if (policy->slots == 0 && policy->activations == Activations::attention_kept &&
        !policy->offload) {
      run = fill_with_activations(search_, std::move(*run));
    }
    const double seconds = run->seconds_per_step();
    if (best_ && best_seconds_ <= seconds) return;
    if (plans_all_kinds_) {
      run = with_all_kinds(run->policy);
      if (!run) return;
    }
    best_seconds_ = seconds;
    best_compute_ = least.compute_seconds;
    best_ = std::move(run);
  }

  const FitRequest& request_;
  const FitRequest search_;  // with the heaviest step only
  KnownNeeds& known_;
  const bool all_kinds_;
  const Bytes state_;  // of all weights, at least
  bool plans_all_kinds_ = false;
  std::optional<PlannedRun> best_;
  double best_seconds_ = 0;  // of the heaviest step
  double best_compute_ = 0;  // of it, at least
};

}  // namespace

bool may_fit(const FitRequest& request) {
  KnownNeeds known;
  return may_fit(request, known);
}

bool may_fit(const FitRequest& request, KnownNeeds& known) {
  return chance(heaviest(request), known) == Chance::good;
}

std::variant<PlannedRun, Refusal> fit(const FitRequest& request) {
  KnownNeeds known;
  return fit(request, known);
}

std::variant<PlannedRun, Refusal> fit(const FitRequest& request, KnownNeeds& known) {
  if (request.policy) {
    PlannedRun run = plan_run(request, *request.policy);
    std::vector<Shortage> missing = shortages(request, run);
    if (missing.empty()) return run;
    return refusal(request.policy->name, run, std::move(missing));
  }
  if (request.switched()) return fit_switched(request);
  if (auto run = Search(request, known).run()) return std::move(*run);
  return refuse(request, known);
}

}  // namespace ballast::wan
