#include "models/wan/fit.h"

#include <algorithm>
#include <iterator>

#include "models/wan/fit_chance.h"
#include "models/wan/fit_fill.h"
#include "models/wan/fit_host.h"
#include "models/wan/fit_search.h"
#include "models/wan/fit_switched.h"
#include "models/wan/job_needs.h"

namespace ballast::wan {

Bytes PlannedRun::lines_of(Tier t) const { return sum_lines(lines, t); }

double PlannedRun::seconds_of_step(std::size_t kind) const {
  const auto seconds = [&](std::string_view name) {
    double sum = 0;
    for (std::size_t p = 0; p < set.programs.size(); ++p) {
      if (set.programs[p].name == name) sum += times[p].seconds;
    }
    return sum;
  };
  if (distil) {
    const double students = distil->student_share, rollouts = 1 + students;
    double sum = students * (seconds("grad_norm") + seconds("update")) +
                 seconds("grad_norm.critic") + seconds("update.critic") + seconds("zero_gradients");
    for (const StepPart& part : parts[kind]) {
      const auto of = [&](const char* name, const char* set) {
        return seconds(run_program(name, part.run) + set);
      };
      sum += rollouts * distil->rollout_answers * of("predict", "") + of("step", ".critic") +
             students * (of("predict", ".critic") + of("teacher", "") + of("step", ""));
    }
    return sum;
  }
  double sum = seconds("grad_norm") + seconds("update") + seconds("zero_gradients");
  // What stays must be read anew when the other expert has its turn.
  const std::string teacher = kTeacherPrefix;
  sum += expert_changes * (seconds("load.high_noise") + seconds(teacher + "load.high_noise"));
  for (const StepPart& part : parts[kind]) {
    sum += seconds(step_program(part.run)) + seconds(teacher + step_program(part.run));
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

namespace {

Refusal refusal(std::string policy, const PlannedRun& run, std::vector<Shortage> missing) {
  return {.policy = std::move(policy),
          .needed = {run.needed(Tier::device), run.needed(Tier::host), run.needed(Tier::disk)},
          .shortages = std::move(missing),
          .seconds_per_step = run.seconds_per_step()};
}

// A policy that is asked for by name has the smallest chunks of any job, cut here at this job's.
MemoryPolicy asked_policy(const FitRequest& request) {
  MemoryPolicy p = *request.policy;
  const std::int64_t unit = row_unit(request.job);
  p.chunk_tokens = (p.chunk_tokens + unit - 1) / unit * unit;
  return p;
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

std::int64_t blocks_from_host(const Config& config, const MemoryPolicy& policy) {
  if (policy.slots == 0) return 0;
  const std::int64_t groups = group_count(config);
  std::int64_t count = 0;
  for (std::int64_t b = 0; b < config.layers; ++b) {
    const std::int64_t g = block_group(b);
    count +=
        !evenly_chosen(g, groups, policy.resident_groups) && comes_from_host(policy, g, groups);
  }
  return count;
}

MemoryPolicy closest_policy(const FitRequest& request) {
  KnownNeeds known;
  return closest_policy(request, known);
}

MemoryPolicy closest_policy(const FitRequest& request, KnownNeeds& known) {
  if (request.policy) return asked_policy(request);
  const FitRequest search = heaviest(request);
  std::optional<MemoryPolicy> closest;
  Bytes least;
  const int most_on_disk = most_disk_state_groups(search, known);
  for (const int on_disk : {0, most_on_disk}) {
    for (MemoryPolicy& policy : lean_policies(search, on_disk)) {
      if (const auto bound = known.of_staying(search, policy);
          closest && bound && least <= excess(search, *bound)) {
        continue;
      }
      const Bytes missing = excess(search, known.of(search, policy));
      if (closest && least <= missing) continue;
      least = missing;
      closest = std::move(policy);
      if (least.count == 0) return *closest;
    }
    if (most_on_disk == 0) break;
  }
  return *closest;
}

namespace {

Refusal refuse(const FitRequest& request, KnownNeeds& known) {
  const PlannedRun run = plan_run(request, closest_policy(request, known));
  return refusal("the lowest-memory plan", run, shortages(request, run));
}

}  // namespace

Bytes excess(const std::vector<Shortage>& missing) {
  Bytes sum;
  for (const Shortage& s : missing) sum += s.needed - s.allowed;
  return sum;
}

bool may_fit(const FitRequest& request) {
  KnownNeeds known;
  return may_fit(request, known);
}

bool may_fit(const FitRequest& request, KnownNeeds& known) {
  const FitRequest search = heaviest(request);
  if (has_good_chance(search, known, 0)) return true;
  const int on_disk = most_disk_state_groups(search, known);
  return on_disk > 0 && has_good_chance(search, known, on_disk);
}

namespace {

// What a search is asked for: where others follow it, nobody reads why it found nothing.
enum class Wanted : std::uint8_t { plan_or_reason, plan };

std::variant<PlannedRun, Refusal> outcome_of(const FitRequest& request, KnownNeeds& known,
                                             Wanted wanted);

// Whether the job fits under this policy without groups that stay: then a search finds a plan. A no
// says nothing.
bool surely_fits(const FitRequest& request, const MemoryPolicy& lean, KnownNeeds& known) {
  const FitRequest search = heaviest(request);
  return !known.surely_over(search, lean) && excess(search, known.of(search, lean)).count == 0 &&
         fits(request, record(request, lean));
}

// The leanest policies that a search may begin with.
std::vector<MemoryPolicy> all_lean_policies(const FitRequest& request, KnownNeeds& known) {
  if (request.policy || request.switched()) return {};
  const FitRequest search = heaviest(request);
  std::vector<MemoryPolicy> all = lean_policies(search);
  if (const int on_disk = most_disk_state_groups(search, known); on_disk > 0) {
    std::ranges::move(lean_policies(search, on_disk), std::back_inserter(all));
  }
  return all;
}

// As many groups of the teacher stay as fit. The fastest plan is looked for with the number that it
// comes to, and on the way where no lean one shows that there is a plan. Nothing: there is none.
// without: what is known where none stay.
std::optional<PlannedRun> with_teacher_groups(FitRequest request, KnownNeeds& without) {
  std::vector<MemoryPolicy> lean = all_lean_policies(request, without);
  std::optional<PlannedRun> run;
  const auto look = [&](KnownNeeds& known) {
    auto outcome = outcome_of(request, known, Wanted::plan);
    auto* fastest = std::get_if<PlannedRun>(&outcome);
    if (fastest) run = std::move(*fastest);
    return fastest != nullptr;
  };
  const auto is_there = [&](KnownNeeds& known) {
    const auto found = std::ranges::find_if(
        lean, [&](const MemoryPolicy& p) { return surely_fits(request, p, known); });
    if (found == lean.end()) return look(known);
    std::iter_swap(lean.begin(), found);  // the next number is asked of it first
    return true;
  };
  if (!is_there(without)) return std::nullopt;
  int& groups = request.teacher->policy->resident_groups;
  int low = 0, high = group_count(request.teacher->config);  // fits with low, not with high
  KnownNeeds with, *of_low = &without;
  while (high - low > 1) {
    groups = (low + high) / 2;
    KnownNeeds known;
    if (!is_there(known)) {
      high = groups;
      continue;
    }
    low = groups;
    with = std::move(known);
    of_low = &with;
  }
  groups = low;
  if (!run || run->teacher_policy.resident_groups != low) look(*of_low);
  return run;
}

// The teacher's weights are put to each place in turn. A leaner place is looked at where the faster
// ones do not fit; as many of its groups stay as do.
std::variant<PlannedRun, Refusal> fit_taught(FitRequest request, Wanted wanted) {
  std::optional<KnownNeeds> known;  // of the place at hand
  for (const MemoryPolicy& place : teacher_policies()) {
    request.teacher->policy = place;
    known.emplace();
    if (place.slots > 0) {
      if (auto run = with_teacher_groups(request, *known)) return std::move(*run);
      continue;
    }
    auto outcome = outcome_of(request, *known, Wanted::plan);
    if (std::holds_alternative<PlannedRun>(outcome)) return outcome;
  }
  if (wanted == Wanted::plan) return Refusal{};
  return outcome_of(request, *known, wanted);  // why the leanest place is not enough
}

// What a companion takes shares its place with what a step takes: mostly one of the faster ways is
// no larger than that.
std::variant<PlannedRun, Refusal> fit_accompanied(FitRequest request, Wanted wanted) {
  constexpr double kAsFast = 1.005;
  FitRequest alone = request;
  alone.companion = {};
  KnownNeeds known_alone;
  const auto without = outcome_of(alone, known_alone, Wanted::plan);
  const auto* alone_run = std::get_if<PlannedRun>(&without);
  std::optional<PlannedRun> best;
  std::optional<Refusal> refused;
  for (std::size_t way = 0; way < request.companion.ways.size(); ++way) {
    const bool leanest = way + 1 == request.companion.ways.size();
    if (!alone_run && !leanest) continue;  // it speaks for all of them
    request.companion.way = way;
    KnownNeeds known;
    auto outcome = outcome_of(request, known, leanest && !best ? wanted : Wanted::plan);
    if (auto* refusal = std::get_if<Refusal>(&outcome)) {
      refused = std::move(*refusal);
      continue;
    }
    auto& run = std::get<PlannedRun>(outcome);
    if (!best || run.seconds_per_step() < best->seconds_per_step()) best = std::move(run);
    if (alone_run && best->seconds_per_step() <= kAsFast * alone_run->seconds_per_step()) break;
  }
  if (best) return std::move(*best);
  return std::move(*refused);
}

std::variant<PlannedRun, Refusal> outcome_of(const FitRequest& request, KnownNeeds& known,
                                             Wanted wanted) {
  // What is known is of one way and one place; these look at several.
  if (!request.companion.ways.empty() && !request.companion.way) {
    return fit_accompanied(request, wanted);
  }
  if (request.teacher && !request.teacher->policy) return fit_taught(request, wanted);
  if (request.policy && wanted == Wanted::plan) {
    auto run = complete_if_fits(request, record(request, asked_policy(request)));
    if (run) return std::move(*run);
    return Refusal{};
  }
  if (request.policy) {
    PlannedRun run = plan_run(request, asked_policy(request));
    std::vector<Shortage> missing = shortages(request, run);
    if (missing.empty()) return run;
    return refusal(request.policy->name, run, std::move(missing));
  }
  if (request.switched()) return fit_switched(request);
  if (auto run = search_plan(request, known)) {
    return fill_host_memory(request, std::move(*run), known);
  }
  if (wanted == Wanted::plan) return Refusal{};
  return refuse(request, known);
}

}  // namespace

std::variant<PlannedRun, Refusal> fit(const FitRequest& request) {
  KnownNeeds known;
  return fit(request, known);
}

std::variant<PlannedRun, Refusal> fit(const FitRequest& request, KnownNeeds& known) {
  return outcome_of(request, known, Wanted::plan_or_reason);
}

}  // namespace ballast::wan
