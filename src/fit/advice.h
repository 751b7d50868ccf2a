#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "fit/fit.h"
#include "fit/needs.h"
#include "plan/budget_flag.h"

namespace ballast::fit {

// Something the user could change. Where a command has parts, `apply` is called with each of them.
struct Change {
  std::string text;  // as it is typed or written: "--frames 41", "[adapter] rank = 8"
  std::function<void(Request&)> apply;
  bool budget_only = false;  // what is needed stays as it is
};

// How a budget of so many megabytes is said; larger_budget(), where it is typed.
using BudgetText = std::function<std::string(Tier, std::uint64_t)>;

// What the leanest plan misses, as larger budgets. ram_bounds_all: there is no GPU and no budget
// was named for it, so the RAM's bounds both arenas, then as now.
std::vector<Change> larger_budgets(const Refusal& refusal, bool ram_bounds_all,
                                   const BudgetText& word);
std::vector<Change> larger_budgets(const Refusal& refusal, bool ram_bounds_all,
                                   const Budget& budget);

// Two changes together: flags behind each other, other texts joined by "and".
std::string joined_texts(const std::string& a, const std::string& b);

// Space on disk for the optimizer's state, which then leaves memory; nothing: there is none that
// could, or it has the space.
std::optional<Change> state_on_disk(const Request& request);

// The largest k in [0, most] with which the leanest plans of all requests fit; 0 when none does.
// Needs grow with k.
std::int64_t largest_fitting(
    std::int64_t most, std::span<const Request> requests,
    const std::function<std::function<void(Request&)>(std::int64_t)>& change);
inline std::int64_t largest_fitting(
    std::int64_t most, const Request& request,
    const std::function<std::function<void(Request&)>(std::int64_t)>& change) {
  return largest_fitting(most, std::span(&request, 1), change);
}

// For people: on the CPU the compute share is part of the RAM, and what is short of both is short
// once.
Bytes missing_memory(const Request& request, const BytesByTier& needed);

// Told of the plan behind each change, whether it fits or not; one at a time, from any thread.
using PlanSeen = std::function<void(const Change&, const Request&, const PlannedRun&)>;

// Every change planned anew: those that fit first, fastest first, then those that come closest.
// When no single one fits, pairs of them follow. tried: called behind each, as it takes a while.
// known: of the request, where find_plan() has asked already.
// others: further parts of the command, which follow one another in the same memory. A change fits
// where all of them do, and else is short of what the part needs that misses most.
std::vector<PlannedChange> try_changes(const Request& request, const Refusal& refusal,
                                       const std::vector<Change>& changes,
                                       const std::function<void()>& tried = {},
                                       NeedsCache known = {}, std::span<const Request> others = {},
                                       const PlanSeen& seen = {});

}  // namespace ballast::fit
