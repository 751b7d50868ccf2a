#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/bytes.h"
#include "plan/memory_plan.h"
#include "plan/process_lines.h"
#include "report/memory_monitor.h"

namespace ballast {

// One line of the plan: what a phase, or the process itself, holds in one tier.
struct PlanRow {
  std::string phase;  // "step", "update"; of the process: "outside the arenas"
  std::string tier;
  Bytes peak, lower_bound;
  std::vector<std::pair<std::string, Bytes>> roles;  // largest first

  bool operator==(const PlanRow&) const = default;
};

std::vector<PlanRow> plan_rows(const MemoryPlan& plan, std::span<const ProcessLine> lines);

// What a run is, said once at its start: the first line of its log and the head of its report.
struct RunInfo {
  using Pairs = std::vector<std::pair<std::string, std::string>>;

  std::string title;    // "Wan2.2 I2V A14B, LoRA rank 32"
  std::string command;  // as typed, without secrets
  std::string started;  // "2026-03-01T12:00:00Z"
  std::int64_t total_steps = 0;
  Pairs summary;          // "dataset" -> "120 clips in 3 buckets"
  Pairs environment;      // "processors" -> "2", "version" -> ...
  MemoryNumbers planned;  // what the run will use
  MemoryNumbers allowed;  // its budgets; 0: not bounded
  std::vector<PlanRow> plan;
  std::string config;  // text of the config file, without secrets
  std::vector<std::string> notes;

  bool operator==(const RunInfo&) const = default;
};

// One JSON object without line breaks. Text that is not UTF-8 has its bad bytes replaced.
std::string to_json(const RunInfo& info);
// Missing or mistyped members stay as they are by default: a report of half a log beats none.
RunInfo run_info_from_json(std::string_view json);

// "2026-03-01T12:00:00Z"; "unknown" outside the years 1 to 9999.
std::string iso_time(double unix_seconds);

}  // namespace ballast
