#include "report/plan_table.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <numeric>

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

std::string predicted_text(double s) {
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

std::string effect_of(const PlannedChange& c) {
  std::string text =
      c.fits ? fmt::format("fits in {} of device and {} of host memory", c.needed[0], c.needed[1])
             : fmt::format("still {} short", c.missing);
  if (c.fits && c.needed[2].count > 0) text += fmt::format(", {} on disk", c.needed[2]);
  if (c.frees_device.count > 0) text += fmt::format(", frees {} of device memory", c.frees_device);
  if (c.frees_host.count > 0) text += fmt::format(", frees {} of host memory", c.frees_host);
  return text + fmt::format(", step time x {:.2f}", c.step_factor);
}

namespace {

// Programs that differ only in shape or expert are one phase for people.
struct Phase {
  std::string_view name;
  std::vector<std::size_t> programs;
};

std::vector<Phase> phases_of(const PlanView& view) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 13> kNames = {
      {{"load", "load"},
       {"init_state", "first state"},
       {"after_restore", "resume"},
       {"distill", "distill"},
       {"step", "step"},
       {"student", "student"},
       {"zero_gradients", "step"},
       {"grad_norm", "gradient norm"},
       {"update", "update"},
       {"eval", "evaluation"},
       {"predict", "sampling"},
       {"preview", "decoding"},
       {"measure", "measuring"}}};
  std::vector<Phase> phases;
  for (const auto& [program, phase] : kNames) {
    for (std::size_t p = 0; p < view.plan.programs.size(); ++p) {
      const std::string& name = view.plan.programs[p].name;
      if (name.substr(0, name.find('.')) != program) continue;
      if (view.plan.waits[p].begin.size() <= 1) continue;  // nothing recorded
      if (phases.empty() || phases.back().name != phase) phases.push_back({phase, {}});
      phases.back().programs.push_back(p);
    }
  }
  return phases;
}

std::string peaks_text(const PlanView& view) {
  std::string text = fmt::format("{:<14} {:<7} {:>10}  {}\n", "phase", "tier", "peak", "made of");
  for (const Phase& phase : phases_of(view)) {
    for (const Tier t : kTiers) {
      const TierUse* most = nullptr;
      for (const std::size_t p : phase.programs) {
        const TierUse& use = view.plan.programs[p].tier(t);
        if (most == nullptr || use.peak > most->peak) most = &use;
      }
      // What is always there is said once.
      const bool always = most->peak == view.plan.persistent[static_cast<std::size_t>(t)];
      if (most->peak.count == 0 || (always && phase.name != "load")) continue;
      text += fmt::format("{:<14} {:<7} {:>10}  {}\n", phase.name, tier_text(t),
                          to_string(most->peak), roles_text(most->roles));
    }
  }
  return text;
}

std::string duration_text(double s) {
  if (s >= 36 * 3600) return fmt::format("{:.1f} days", s / 86400);
  if (s >= 5400) return fmt::format("{:.1f} h", s / 3600);
  return predicted_text(s);
}

double epoch_seconds(const PlanView& view) {
  double sum = 0;
  for (std::size_t k = 0; k < view.step_seconds.size(); ++k) {
    sum += view.step_seconds[k] * static_cast<double>(view.steps_of_kind[k]);
  }
  return sum;
}

std::int64_t epoch_steps(const PlanView& view) {
  return std::accumulate(view.steps_of_kind.begin(), view.steps_of_kind.end(), std::int64_t{0});
}

std::string times_text(const PlanView& view) {
  std::string text = "predicted time\n";
  const auto line = [&](std::string_view name, const std::string& time, const std::string& more) {
    text += fmt::format("{:<14} {:>10}{}{}\n", name, time, more.empty() ? "" : "  ", more);
  };
  for (const Phase& phase : phases_of(view)) {
    const PredictedTime* most = nullptr;
    for (const std::size_t p : phase.programs) {
      if (most == nullptr || view.times[p].seconds > most->seconds) most = &view.times[p];
    }
    std::string more;
    if (phase.programs.size() > 1) more = fmt::format("the longest of {}", phase.programs.size());
    if (most->exposed_stall > 0.005 * most->seconds) {
      more += fmt::format("{}of which {} waiting for data", more.empty() ? "" : ", ",
                          predicted_text(most->exposed_stall));
    }
    line(phase.name, predicted_text(most->seconds), more);
  }
  const std::int64_t in_epoch = epoch_steps(view);
  if (in_epoch == 0) return text;
  line("epoch", duration_text(epoch_seconds(view)), fmt::format("{} steps", in_epoch));
  line("whole run",
       duration_text(epoch_seconds(view) / static_cast<double>(in_epoch) *
                     static_cast<double>(view.total_steps)),
       fmt::format("{} steps; saving, evaluation and previews come on top", view.total_steps));
  return text;
}

}  // namespace

std::string plan_table(const PlanTitle& title, const PlanView& view) {
  std::string text = fmt::format("{} {}: {}\n", title.model, title.mode, title.shape);
  text += fmt::format("machine  {}\n", title.machine);
  text += fmt::format("policy   {}: {}\n", view.policy, view.policy_text);
  for (const std::string& note : view.notes) text += fmt::format("note     {}\n", note);
  const Bytes device = view.plan.peak_of(Tier::device) + lines_of(view.lines, Tier::device);
  const Bytes host = view.plan.peak_of(Tier::host) + lines_of(view.lines, Tier::host);
  text += "fits     ";
  text += title.shared_ram
              ? fmt::format("needs {} of RAM, {} allowed\n\n", device + host, title.budget.host)
              : fmt::format(
                    "needs {} of device memory ({} allowed) and {} of host memory ({} "
                    "allowed)\n\n",
                    device, title.budget.gpu, host, title.budget.host);
  text += peaks_text(view);
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
  total("device", device, title.budget.gpu);
  if (title.shared_ram) {
    total("RAM", device + host, title.budget.host);
  } else {
    total("host", host, title.budget.host);
    text += fmt::format("{:<11} {:>10}  of it, where the GPU reads and writes it\n", "  pinned",
                        to_string(view.plan.peak_of(Tier::host)));
  }
  total("disk", view.plan.peak_of(Tier::disk) + lines_of(view.lines, Tier::disk),
        title.budget.disk);
  return text + "\n" + times_text(view);
}

std::string plan_json(const PlanTitle& title, const PlanView& view) {
  Json j = {{"fits", true},
            {"model", title.model},
            {"mode", title.mode},
            {"shape", title.shape},
            {"weights", title.weights},
            {"machine", title.machine},
            {"policy", view.policy},
            {"policy_text", view.policy_text},
            {"streamed_blocks", view.streamed_blocks},
            {"notes", view.notes}};
  if (const std::int64_t steps = epoch_steps(view); steps > 0 || view.total_steps > 0) {
    j["steps_per_epoch"] = steps;
    j["total_steps"] = view.total_steps;
    j["seconds_per_epoch"] = epoch_seconds(view);
  }
  if (!view.step_seconds.empty()) j["seconds_per_step"] = view.step_seconds[0];
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
  } else {
    j["host"]["pinned_bytes"] = view.plan.peak_of(Tier::host).count;
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

std::vector<Advice> advice_of(std::span<const PlannedChange> changes) {
  std::vector<Advice> advice;
  for (const PlannedChange& c : changes) advice.push_back({c.text, effect_of(c)});
  return advice;
}

std::string refusal_json(const PlanTitle& title, const Refusal& refusal,
                         std::span<const PlannedChange> advice) {
  Json j = {{"fits", false},
            {"model", title.model},
            {"mode", title.mode},
            {"shape", title.shape},
            {"machine", title.machine},
            {"policy", refusal.policy},
            {"seconds_per_step", refusal.seconds_per_step}};
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
  for (const PlannedChange& c : advice) {
    Json needed = Json::object();
    for (const Tier t : kTiers) {
      needed[std::string(name_of(t))] = c.needed[static_cast<std::size_t>(t)].count;
    }
    j["advice"].push_back({{"change", c.text},
                           {"effect", effect_of(c)},
                           {"fits", c.fits},
                           {"needed_bytes", std::move(needed)},
                           {"missing_bytes", c.missing.count},
                           {"frees_device_bytes", c.frees_device.count},
                           {"frees_host_bytes", c.frees_host.count},
                           {"seconds_per_step", c.step_seconds},
                           {"step_factor", c.step_factor}});
  }
  return j.dump(2) + "\n";
}

}  // namespace ballast
