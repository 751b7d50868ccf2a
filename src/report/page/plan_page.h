#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "plan/predict.h"
#include "report/plan_table.h"

namespace ballast {

// The page of `ballast plan --html`: one file without anything to load. A script of its own draws
// the maps; the tables are there without it. Every text in it is escaped, whoever wrote it.

// How many shapes a plan may have on a page.
struct MapLimits {
  std::size_t blocks = 24'000, bars = 12'000;
};
inline constexpr MapLimits kSmallMap{3'000, 1'200};  // of a plan beside the one that was asked for

struct MapRequest {
  std::string label;  // "this plan", "--frames 41"
  const PlanTitle& title;
  const ProgramSet& set;
  const MemoryPlan& plan;
  std::span<const ProcessLine> lines;
  std::span<const PredictedTime> times;   // by program
  std::function<Timeline(int)> timeline;  // of a program; empty: without a prediction
  std::string verdict;                    // "fits: ...", "does not fit: ..."
  std::string policy;
  double step_seconds = 0;
  MapLimits limits = {};
};

// A plan as the page keeps it: the program set may go.
struct MappedPlan {
  std::string label, verdict, policy, effect;
  std::string json;  // what the script draws
  std::string sums;  // tables of what adds up to each peak
  Budget budget;
  bool shared_ram = false;
  std::array<Bytes, kTiers.size()> needed = {};
  double step_seconds = 0;

  bool fits() const;
};

MappedPlan map_plan(const MapRequest& request);

// The first plan is the one that was asked for; the script shows any other beside it. heading: what
// the others are, "What would help" or "Compared with".
std::string plan_page(const PlanTitle& title, std::span<const MappedPlan> plans,
                      std::string_view heading);

// What the script draws, with the names of roles and lanes. JSON that may stand inside a script
// element: nothing in it ends one.
std::string plans_json(std::span<const MappedPlan> plans);

// "step 12 % faster, 1.200 GB less GPU memory, ...": what a plan has other than the first one.
std::string difference_text(const MappedPlan& first, const MappedPlan& other);

extern const std::string_view kPlanPageStyle, kPlanPageScript;

}  // namespace ballast
