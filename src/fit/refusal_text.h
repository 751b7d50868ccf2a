#pragma once

#include <span>
#include <string>
#include <vector>

#include "fit/advice.h"
#include "report/plan_table.h"

namespace ballast::fit {

// How a refusal is said, whichever model or command it is about.

// "does not fit: 2.600 MB more GPU memory needed", a line for each kind of memory that is short.
std::string refusal_verdict(const Refusal& refusal, const PlanTitle& title);

struct RefusalStyle {
  // Whether the policy was asked for; else the refusal speaks of the lowest-memory plan.
  bool policy_given = false;
  std::span<const std::string> notes = {};
  std::size_t columns = kPlainColumns;
};

// The verdict, what is needed and allowed of each kind of memory, when most is needed and what
// holds it, the notes.
std::string refusal_text(const Refusal& refusal, const PlanTitle& title,
                         const RefusalStyle& style = {});

// Ends with ErrorCode::refused: the text, and as advice what each change leads to, planned anew.
// known, others: as try_changes() takes them.
[[noreturn]] void fail_refused(const PlanTitle& title, const Request& request,
                               const Refusal& refusal, const std::vector<Change>& changes,
                               NeedsCache known = {}, std::span<const Request> others = {});

}  // namespace ballast::fit
