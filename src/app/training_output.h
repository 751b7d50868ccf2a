#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "report/page/plan_page.h"
#include "report/plan_table.h"
#include "train/trainer.h"

namespace ballast {

// What commands that train print: text, or with --json nothing but lines of JSON, the plan's and
// then what came of it. With --json=steps each line of the run log comes in between, and each line
// says what it is:
//   {"kind":"plan",…}                                as `ballast plan --json`
//   {"kind":"cache",…}                               what was encoded first
//   {"kind":"run"|"step"|"eval"|"score"|"event",…}   as in the run log (report/run_log.h)
//   {"kind":"predictions",…}                         of a text model
//   {"kind":"end",…}                                 what came of it; or
//   {"kind":"error","code":…,"message":…,"trail":…,"advice":…}

// A JSON document of any form, on one line. kind: "" for none.
void print_json_line(const std::string& document, std::string_view kind = {});

struct PlanOutput {
  bool json = false, steps = false, details = false;
  bool ignore_limits = false;           // where files do not fit, that is a warning
  std::string html = {};                // file of the plan's page; empty: none (app/plan_pages.h)
  std::vector<MappedPlan> others = {};  // on that page, beside the plan

  // Of a line: `name` with --json=steps, else none.
  std::string_view kind(std::string_view name) const { return steps ? name : std::string_view(); }
};
void print_plan(const PlanTitle& title, const PlanView& view, const PlanOutput& output);

struct NamedPath {
  const char* name;  // "run", "student"
  std::string where;
};
void print_outcome(const train::TrainOutcome& done, const std::vector<NamedPath>& places,
                   const PlanOutput& output);

// With --json: of a run that was stopped before its first step.
void print_stopped_early(const PlanOutput& output);

// For train::TrainOptions: prints each line of the run log with --json=steps.
LineListener record_printer(const PlanOutput& output);
// Calls `work`. With --json=steps a failure of it is also a line.
void with_error_line(const PlanOutput& output, const std::function<void()>& work);

}  // namespace ballast
