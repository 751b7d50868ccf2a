#include "fit/refusal_text.h"

#include <algorithm>

#include "plan/already_held.h"
#include "plan/display_names.h"

namespace ballast::fit {
namespace {

// On the CPU a RAM budget alone bounds both: then the compute share says nothing of its own.
std::vector<Shortage> told(const Refusal& refusal, const PlanTitle& title) {
  std::vector<Shortage> all = refusal.shortages;
  const bool ram = std::ranges::any_of(
      all, [&](const Shortage& s) { return s.tier == Tier::host && title.shared_ram; });
  if (ram && title.budget.gpu == title.budget.host) {
    std::erase_if(all, [](const Shortage& s) { return s.tier == Tier::device; });
  }
  return all;
}

std::string totals_of_refusal(const Refusal& refusal, const PlanTitle& title) {
  std::string text =
      fmt::format("\n{:<27} {:>10} {:>10} {:>10}\n", "memory", "needed", "allowed", "short");
  const auto row = [&](Tier t, Bytes needed, Bytes allowed) {
    text += fmt::format("{:<27} {:>10} {:>10} {:>10}\n", memory_name(t, title.shared_ram),
                        to_string(needed), allowed >= kNoLimit ? "no limit" : to_string(allowed),
                        needed > allowed ? to_string(needed - allowed) : "-");
  };
  const auto& [device, host, disk] = refusal.needed;
  row(Tier::device, device, title.budget.gpu);
  row(Tier::host, title.shared_ram ? device + host : host, title.budget.host);
  if (disk.count > 0) row(Tier::disk, disk, title.budget.disk);
  return text;
}

// When most is needed and what holds it: "in the step: attention backward of block 3 (weights
// ...)".
std::string holders_of(const Shortage& s) {
  if (std::string roles = roles_text(s.roles, 0.01); !roles.empty()) {
    return fmt::format("{} ({})", moment_text(s.program, s.at), roles);
  }
  std::string text;
  for (const auto& [name, bytes] : s.outside) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, bytes);
  }
  return text.empty() ? moment_text(s.program, s.at) : text;
}

}  // namespace

std::string refusal_verdict(const Refusal& refusal, const PlanTitle& title) {
  return shortage_lines(told(refusal, title), title.budget, title.shared_ram);
}

std::string refusal_text(const Refusal& refusal, const PlanTitle& title,
                         const RefusalStyle& style) {
  std::string text = refusal_verdict(refusal, title) + "\n" + totals_of_refusal(refusal, title);
  text += "\n" + title_text(title, style.columns) +
          labelled("policy",
                   style.policy_given ? fmt::format("{}, as asked for", refusal.policy)
                                      : "does not fit even with the lowest-memory plan",
                   style.columns);
  for (const Shortage& s : told(refusal, title)) {
    const std::string_view memory = s.tier == Tier::device && !title.shared_ram ? "GPU"
                                    : s.tier == Tier::disk                      ? "disk"
                                                                                : "RAM";
    text += labelled(fmt::format("most {}", memory), holders_of(s), style.columns);
  }
  if (const Bytes held = already_held(); held.count > 0) {
    text += labelled(
        "held",
        fmt::format("{} of the RAM by this process before Ballast was called", to_string(held)),
        style.columns);
  }
  text += notes_text(style.notes, style.columns);
  text.pop_back();
  return text;
}

void fail_refused(const PlanTitle& title, const Request& request, const Refusal& refusal,
                  const std::vector<Change>& changes, NeedsCache known,
                  std::span<const Request> others) {
  const auto planned = try_changes(request, refusal, changes, {}, std::move(known), others);
  fail(ErrorCode::refused,
       refusal_text(refusal, title, {.policy_given = request.policy.has_value()}),
       advice_of(planned, title.shared_ram));
}

}  // namespace ballast::fit
