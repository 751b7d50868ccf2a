#include "report/plan_table.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

Bytes lines_of(std::span<const ProcessLine> lines, Tier t) {
  Bytes sum;
  for (const ProcessLine& l : lines) {
    if (l.tier == t) sum += l.bytes;
  }
  return sum;
}

Bytes budget_of(const Budget& b, Tier t) {
  return t == Tier::device ? b.gpu : t == Tier::host ? b.host : b.disk;
}

// Roles with bytes in them, largest first.
std::vector<std::pair<std::string_view, Bytes>> sorted_roles(const BytesByRole& roles) {
  std::vector<std::pair<std::string_view, Bytes>> all;
  for (int r = 0; r < kRoles; ++r) {
    const Bytes b = roles[static_cast<std::size_t>(r)];
    if (b.count > 0) all.emplace_back(name_of(static_cast<Role>(r)), b);
  }
  std::ranges::stable_sort(all, [](const auto& a, const auto& b) { return a.second > b.second; });
  return all;
}

std::string roles_text(const BytesByRole& roles) {
  std::string text;
  for (const auto& [name, bytes] : sorted_roles(roles)) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, bytes);
  }
  return text;
}

std::string seconds_text(double s) {
  if (s >= 90) return fmt::format("{:.1f} min", s / 60);
  if (s >= 1) return fmt::format("{:.2f} s", s);
  return fmt::format("{:.1f} ms", s * 1e3);
}

// What the user calls a tier.
std::string_view tier_text(Tier t) {
  return t == Tier::device ? "device" : t == Tier::host ? "host" : "disk";
}

}  // namespace

std::string describe_shortage(const Shortage& s, const PlanTitle& title) {
  const bool both = s.tier == Tier::host && title.shared_ram;
  return fmt::format("  needs {} of {} memory during {}{}, {} allowed ({} too much): {}", s.needed,
                     both ? "host (both arenas)" : tier_text(s.tier), s.program,
                     s.at.empty() ? "" : " (" + s.at + ")", s.allowed, s.needed - s.allowed,
                     roles_text(s.roles));
}

std::string plan_table(const PlanTitle& title, const PlanView& view) {
  std::string text = fmt::format("{} {}: {}\n", title.model, title.mode, title.shape);
  text += fmt::format("machine  {}\n", title.machine);
  text += fmt::format("policy   {}: {}\n\n", view.policy, view.policy_text);
  text += fmt::format("{:<11} {:<7} {:>10} {:>12}  {}\n", "phase", "tier", "peak", "lower bound",
                      "made of");
  for (const ProgramUse& p : view.plan.programs) {
    for (const Tier t : kTiers) {
      const TierUse& use = p.tier(t);
      if (use.peak.count == 0) continue;
      text += fmt::format("{:<11} {:<7} {:>10} {:>12}  {}\n", p.name, tier_text(t),
                          to_string(use.peak), to_string(use.lower_bound), roles_text(use.roles));
    }
  }
  text += "\noutside the arenas\n";
  for (const ProcessLine& l : view.lines) {
    text += fmt::format("{:<27} {:<7} {:>10}  {}\n", l.name, tier_text(l.tier), to_string(l.bytes),
                        l.reason);
  }
  text += fmt::format("\n{:<11} {:>10} {:>10} {:>10}\n", "total", "planned", "budget", "free");
  const auto total = [&](std::string_view name, Bytes needed, Bytes budget) {
    text += fmt::format("{:<11} {:>10} {:>10} {:>10}\n", name, to_string(needed), to_string(budget),
                        to_string(budget - std::min(needed, budget)));
  };
  const Bytes device = view.plan.peak_of(Tier::device) + lines_of(view.lines, Tier::device);
  const Bytes host = view.plan.peak_of(Tier::host) + lines_of(view.lines, Tier::host);
  total("device", device, title.budget.gpu);
  if (title.shared_ram) {
    total("RAM", device + host, title.budget.host);
  } else {
    total("host", host, title.budget.host);
  }
  total("disk", view.plan.peak_of(Tier::disk), title.budget.disk);
  text += "\npredicted time\n";
  for (std::size_t p = 0; p < view.times.size(); ++p) {
    const PredictedTime& t = view.times[p];
    if (view.plan.waits[p].begin.size() <= 1) continue;  // nothing recorded
    text += fmt::format("{:<11} {:>10}", view.plan.programs[p].name, seconds_text(t.seconds));
    if (t.exposed_stall > 0.005 * t.seconds) {
      text += fmt::format("  of which {} waiting for data", seconds_text(t.exposed_stall));
    }
    text += "\n";
  }
  return text;
}

std::string plan_json(const PlanTitle& title, const PlanView& view) {
  Json j = {{"fits", true},          {"model", title.model},           {"mode", title.mode},
            {"shape", title.shape},  {"weights", title.weights},       {"machine", title.machine},
            {"policy", view.policy}, {"policy_text", view.policy_text}};
  const auto tier_lines = [&](Tier t) { return lines_of(view.lines, t); };
  for (const Tier t : kTiers) {
    j[std::string(name_of(t))] = {{"peak_bytes", (view.plan.peak_of(t) + tier_lines(t)).count},
                                  {"arena_bytes", view.plan.peak_of(t).count},
                                  {"budget_bytes", budget_of(title.budget, t).count}};
  }
  if (title.shared_ram) {
    Bytes all;
    for (const Tier t : {Tier::device, Tier::host}) all += view.plan.peak_of(t) + tier_lines(t);
    j["ram"] = {{"peak_bytes", all.count}, {"budget_bytes", title.budget.host.count}};
  }
  j["outside_arenas"] = Json::array();
  for (const ProcessLine& l : view.lines) {
    j["outside_arenas"].push_back(
        {{"name", l.name}, {"tier", name_of(l.tier)}, {"bytes", l.bytes.count}});
  }
  j["phases"] = Json::array();
  for (std::size_t p = 0; p < view.plan.programs.size(); ++p) {
    const ProgramUse& use = view.plan.programs[p];
    Json phase = {{"name", use.name},
                  {"seconds", view.times[p].seconds},
                  {"exposed_stall_seconds", view.times[p].exposed_stall}};
    for (const Tier t : kTiers) {
      const TierUse& u = use.tier(t);
      Json roles = Json::object();
      for (const auto& [name, bytes] : sorted_roles(u.roles))
        roles[std::string(name)] = bytes.count;
      phase[std::string(name_of(t))] = {
          {"peak_bytes", (u.peak + tier_lines(t)).count},
          {"lower_bound_bytes", (u.lower_bound + tier_lines(t)).count},
          {"at", u.at},
          {"roles", std::move(roles)}};
    }
    if (use.name == "step") j["step_seconds"] = view.times[p].seconds;
    j["phases"].push_back(std::move(phase));
  }
  return j.dump(2) + "\n";
}

std::string refusal_json(const PlanTitle& title, const Refusal& refusal,
                         std::span<const Advice> advice) {
  Json j = {{"fits", false},        {"model", title.model},     {"mode", title.mode},
            {"shape", title.shape}, {"machine", title.machine}, {"policy", refusal.policy}};
  for (const Tier t : kTiers) {
    j[std::string(name_of(t))] = {{"peak_bytes", refusal.needed[static_cast<std::size_t>(t)].count},
                                  {"budget_bytes", budget_of(title.budget, t).count}};
  }
  j["shortages"] = Json::array();
  for (const Shortage& s : refusal.shortages) {
    Json roles = Json::object();
    for (const auto& [name, bytes] : sorted_roles(s.roles)) roles[std::string(name)] = bytes.count;
    j["shortages"].push_back({{"tier", name_of(s.tier)},
                              {"phase", s.program},
                              {"needed_bytes", s.needed.count},
                              {"allowed_bytes", s.allowed.count},
                              {"roles", std::move(roles)}});
  }
  j["advice"] = Json::array();
  for (const Advice& a : advice)
    j["advice"].push_back({{"change", a.change}, {"effect", a.effect}});
  return j.dump(2) + "\n";
}

}  // namespace ballast
