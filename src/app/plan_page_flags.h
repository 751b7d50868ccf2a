#pragma once

#include <span>
#include <string>
#include <vector>

#include "report/page/plan_page.h"

namespace ballast {

// Flags of `ballast plan` that are about its page, whatever the others describe.
struct PlanPageFlags {
  std::string html;
  std::vector<std::string> versus;
  std::string grid;
};

// Fills `to` and returns the other arguments.
std::vector<std::string> take_page_flags(const std::vector<std::string>& arguments,
                                         PlanPageFlags& to);

// A plan beside the one of the command line, as a command line of its own.
struct OtherPlan {
  std::string label;  // "--gpu 16GB --frames 49"
  std::vector<std::string> arguments;
};

// What --versus names, then every combination of --grid. Flags replace those of `arguments`; a name
// of a file replaces all of them.
std::vector<OtherPlan> other_plans(const PlanPageFlags& flags,
                                   const std::vector<std::string>& arguments);

// For people: a line for each, with what it needs and how long a step takes. "" where there is
// none.
std::string others_table(std::span<const MappedPlan> others);

}  // namespace ballast
