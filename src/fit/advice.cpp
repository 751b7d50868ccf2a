#include "fit/advice.h"

#include <algorithm>
#include <mutex>

#include "core/thread_pool.h"
#include "core/to_size.h"
#include "fit/bounds.h"
#include "fit/tuning.h"
#include "memory/machine.h"

namespace ballast::fit {
namespace {

Bytes less(Bytes before, Bytes after) { return before > after ? before - after : Bytes{}; }

// As things are: what the refusal speaks of.
struct Baseline {
  const Request& request;
  const Refusal& refusal;
  MemoryPolicy policy;
  std::span<const Request> others;  // parts of the same command
};

// known: of what the change makes of the job. seen: gets the plan behind it.
PlannedChange planned_alone(const Baseline& baseline, const Change& change, NeedsCache& known,
                            const std::function<void(const Request&, const PlannedRun&)>& seen) {
  Request r = baseline.request;
  change.apply(r);
  PlannedChange p;
  p.text = change.text;
  const auto compare = [&](Bytes lean_device, Bytes lean_host) {
    const double before = baseline.refusal.seconds_per_step;
    p.step_factor = before > 0 ? p.step_seconds / before : 0;
    p.frees_device = less(baseline.refusal.needed[0], lean_device);
    p.frees_host = less(baseline.refusal.needed[1], lean_host);
  };
  // The same plan as now, measured against another budget that is not enough for it.
  const Bytes missing_now = missing_memory(r, baseline.refusal.needed);
  if (!seen && change.budget_only && !r.policy && missing_now.count > 0 && !may_fit(r, known) &&
      closest_policy(r, known) == baseline.policy) {
    p.needed = baseline.refusal.needed;
    p.missing = missing_now;
    p.step_seconds = baseline.refusal.seconds_per_step;
    return p;
  }
  PlannedRun refused;
  const auto outcome = find_plan(r, known, seen ? &refused : nullptr);
  const auto* run = std::get_if<PlannedRun>(&outcome);
  if (seen) seen(r, run ? *run : refused);
  if (run) {
    p.fits = true;
    for (const Tier t : kTiers) p.needed[to_size(t)] = run->needed(t);
    p.step_seconds = run->seconds_per_step();
    if (change.budget_only) {
      compare(baseline.refusal.needed[0], baseline.refusal.needed[1]);
    } else {
      const MemoryPolicy closest = closest_policy(r, known);
      const bool one_kind = r.job->kinds() == r.job->heaviest()->kinds();
      const NeedsLowerBound lean =
          one_kind ? known.needs_for(r, closest) : needs_lower_bound(r, closest);
      compare(lean.device, lean.host);
    }
  } else {
    const auto& refusal = std::get<Refusal>(outcome);
    p.needed = refusal.needed;
    p.missing = missing_memory(r, refusal.needed);
    p.step_seconds = refusal.seconds_per_step;
    compare(p.needed[0], p.needed[1]);
  }
  return p;
}

// By the same change of another part: what the command needs then.
void add_part(PlannedChange& p, Request part, const Change& change, bool beside_gpu) {
  change.apply(part);
  const auto outcome = find_plan(part);
  const auto* run = std::get_if<PlannedRun>(&outcome);
  BytesByTier needed;
  for (const Tier t : kTiers) {
    needed[to_size(t)] = run ? run->needed(t) : std::get<Refusal>(outcome).needed[to_size(t)];
  }
  const Bytes missing = run ? Bytes{} : missing_memory(part, needed);
  if (beside_gpu && part.backend.device == Device::cpu) {
    needed = {Bytes{}, needed[0] + needed[1], needed[2]};  // processors compute in RAM
  }
  if (missing > p.missing) {
    p.needed = needed;
  } else if (run && p.fits) {
    for (std::size_t t = 0; t < needed.size(); ++t) p.needed[t] = std::max(p.needed[t], needed[t]);
  }
  p.fits = p.fits && run;
  p.missing = std::max(p.missing, missing);
}

PlannedChange planned(const Baseline& baseline, const Change& change, NeedsCache& known,
                      const std::function<void(const Request&, const PlannedRun&)>& seen) {
  PlannedChange p = planned_alone(baseline, change, known, seen);
  const bool gpu = baseline.request.backend.device != Device::cpu;
  for (const Request& other : baseline.others) add_part(p, other, change, gpu);
  return p;
}

void rank(std::vector<PlannedChange>& all) {
  std::ranges::stable_sort(all, [](const PlannedChange& a, const PlannedChange& b) {
    return std::tuple(!a.fits, a.missing, a.step_seconds) <
           std::tuple(!b.fits, b.missing, b.step_seconds);
  });
}

// A search for a plan of a 14B model takes up to 220 MB: on a machine that is short of memory,
// which a refusal is about, they must not be what is too much.
int plans_at_once(std::size_t wanted) {
  const Machine m = read_machine();
  const std::uint64_t room = available_memory(m).value_or(Bytes{}).count / (512ull << 20);
  return static_cast<int>(std::clamp<std::uint64_t>(
      std::min<std::uint64_t>({room, static_cast<std::uint64_t>(usable_cpus(m)), wanted}), 1, 8));
}

// Changes do not ask for each other: as many are planned at once as there are processors. Those of
// the budget alone follow each other on one, and share what is known of the job.
class Trial {
 public:
  Trial(const Request& request, const Refusal& refusal, const std::function<void()>& tried,
        NeedsCache known, std::span<const Request> others, const PlanSeen& seen)
      : known_(std::move(known)),
        baseline_{request, refusal, closest_policy(request, known_), others},
        tried_(tried),
        seen_(seen) {}

  // only_fitting: of those that do not fit nothing is said.
  std::vector<std::optional<PlannedChange>> of(const std::vector<Change>& changes,
                                               bool only_fitting) {
    std::vector<std::vector<std::size_t>> tasks(1);
    for (std::size_t i = 0; i < changes.size(); ++i) {
      if (changes[i].budget_only) {
        tasks.front().push_back(i);
      } else {
        tasks.push_back({i});
      }
    }
    std::vector<std::optional<PlannedChange>> all(changes.size());
    ThreadPool pool(plans_at_once(tasks.size()));
    pool.parallel(std::ssize(tasks), [&](std::int64_t task, int) {
      for (const std::size_t i : tasks[to_size(task)]) {
        NeedsCache anew;
        all[i] = plan(changes[i], changes[i].budget_only ? known_ : anew, only_fitting);
      }
    });
    return all;
  }

 private:
  std::optional<PlannedChange> plan(const Change& change, NeedsCache& known, bool only_fitting) {
    if (only_fitting) {
      Request r = baseline_.request;
      change.apply(r);
      if (!r.policy && !may_fit(r, known)) return std::nullopt;
    }
    std::function<void(const Request&, const PlannedRun&)> seen;
    if (seen_) {
      seen = [&](const Request& r, const PlannedRun& run) {
        const std::lock_guard one(mutex_);
        seen_(change, r, run);
      };
    }
    PlannedChange p = planned(baseline_, change, known, seen);
    const std::lock_guard one(mutex_);
    if (tried_) tried_();
    return p.fits || !only_fitting ? std::optional(std::move(p)) : std::nullopt;
  }

  NeedsCache known_;  // of the job as it is
  const Baseline baseline_;
  const std::function<void()>& tried_;
  const PlanSeen& seen_;
  std::mutex mutex_;
};

std::vector<PlannedChange> ranked(std::vector<std::optional<PlannedChange>> answers) {
  std::vector<PlannedChange> all;
  for (auto& p : answers) {
    if (p) all.push_back(std::move(*p));
  }
  rank(all);
  return all;
}

}  // namespace

Bytes missing_memory(const Request& request, const BytesByTier& needed) {
  const auto& [device, host, disk] = needed;
  const Budget& budget = request.budget;
  const bool shared = request.backend.device == Device::cpu;
  const Bytes gpu = less(device, budget.gpu);
  const Bytes ram = less(shared ? device + host : host, budget.host);
  return (shared ? std::max(gpu, ram) : gpu + ram) + less(disk, budget.disk);
}

std::string joined_texts(const std::string& a, const std::string& b) {
  return a + (a.starts_with("--") && b.starts_with("--") ? " " : " and ") + b;
}

std::vector<Change> larger_budgets(const Refusal& refusal, bool ram_bounds_all,
                                   const BudgetText& word) {
  std::vector<Change> all;
  for (const Shortage& s : refusal.shortages) {
    if (ram_bounds_all && s.tier == Tier::device) continue;  // so is the RAM, by more
    const std::uint64_t megabytes = megabytes_for(s.needed);
    const auto raise = [tier = s.tier, megabytes, ram_bounds_all](Request& r) {
      Bytes& b = tier == Tier::device ? r.budget.gpu
                 : tier == Tier::host ? r.budget.host
                                      : r.budget.disk;
      if (b < kNoLimit) b = Bytes{megabytes * kMegabyte};
      if (ram_bounds_all && tier == Tier::host) r.budget.gpu = b;
    };
    all.push_back({.text = word(s.tier, megabytes), .apply = raise, .budget_only = true});
  }
  return all;
}

std::vector<Change> larger_budgets(const Refusal& refusal, bool ram_bounds_all,
                                   const Budget& budget) {
  return larger_budgets(refusal, ram_bounds_all, [&](Tier tier, std::uint64_t megabytes) {
    return larger_budget(budget, tier, megabytes);
  });
}

std::optional<Change> state_on_disk(const Request& request) {
  const Job& job = *request.job;
  if (request.policy || request.switches.any() || !job.may_keep_state_on_disk())
    return std::nullopt;
  const Request search = heaviest(request);
  const NeedsLowerBound needs =
      needs_lower_bound(search, lean_policies(search, job.group_count()).front());
  if (needs.disk <= request.budget.disk) return std::nullopt;
  const std::uint64_t megabytes = megabytes_for(needs.disk);
  return Change{.text = budget_flag(Tier::disk, megabytes),
                .apply = [megabytes](Request& r) { r.budget.disk = Bytes{megabytes * kMegabyte}; }};
}

std::int64_t largest_fitting(
    std::int64_t most, std::span<const Request> requests,
    const std::function<std::function<void(Request&)>(std::int64_t)>& change) {
  const auto fits = [&](Request r, std::int64_t k) {
    change(k)(r);
    NeedsCache known;
    return may_fit(r, known);
  };
  std::int64_t low = 0, high = most + 1;  // fits below low, not from high on
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (std::ranges::all_of(requests, [&](const Request& r) { return fits(r, middle); })) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return std::max<std::int64_t>(0, low - 1);
}

std::vector<PlannedChange> try_changes(const Request& request, const Refusal& refusal,
                                       const std::vector<Change>& changes,
                                       const std::function<void()>& tried, NeedsCache known,
                                       std::span<const Request> others, const PlanSeen& seen) {
  Trial trial(request, refusal, tried, std::move(known), others, seen);
  std::vector<PlannedChange> all = ranked(trial.of(changes, false));
  if (all.empty() || all.front().fits) return all;

  std::vector<const Change*> best;
  for (std::size_t i = 0; i < std::min(all.size(), tuning::kPairedChanges); ++i) {
    best.push_back(&*std::ranges::find(changes, all[i].text, &Change::text));
  }
  std::vector<Change> both;
  const auto pair = [&](const Change& a, const Change& b) {
    const auto same = [&](const Change& c) {
      return c.text == joined_texts(a.text, b.text) || c.text == joined_texts(b.text, a.text);
    };
    if (std::ranges::any_of(both, same)) return;
    both.push_back({.text = joined_texts(a.text, b.text),
                    .apply =
                        [&a, &b](Request& r) {
                          a.apply(r);
                          b.apply(r);
                        },
                    .budget_only = a.budget_only && b.budget_only});
  };
  // What is short, together: it helps whatever comes closest.
  std::vector<const Change*> budgets;
  for (const Change& c : changes) {
    if (c.budget_only) budgets.push_back(&c);
  }
  if (budgets.size() == 2) pair(*budgets[0], *budgets[1]);
  for (std::size_t i = 0; i < best.size(); ++i) {
    for (std::size_t j = i + 1; j < best.size(); ++j) pair(*best[i], *best[j]);
  }
  const std::vector<PlannedChange> pairs = ranked(trial.of(both, true));
  all.insert(all.begin(), pairs.begin(), pairs.end());
  return all;
}

}  // namespace ballast::fit
