#pragma once

#include <string>
#include <vector>

#include "report/page/plan_page.h"
#include "report/plan_table.h"
#include "train/trainer.h"

namespace ballast {

// What commands that train print: text, or with --json nothing but lines of JSON, the plan's and
// then what came of it.

// A JSON document of any form, on one line.
void print_json_line(const std::string& document);

struct PlanOutput {
  bool json = false, details = false;
  bool ignore_limits = false;           // where files do not fit, that is a warning
  std::string html = {};                // file of the plan's page; empty: none (app/plan_pages.h)
  std::vector<MappedPlan> others = {};  // on that page, beside the plan
};
void print_plan(const PlanTitle& title, const PlanView& view, const PlanOutput& output);

struct NamedPath {
  const char* name;  // "run", "student"
  std::string where;
};
void print_outcome(const train::TrainOutcome& done, const std::vector<NamedPath>& places,
                   bool json);

}  // namespace ballast
