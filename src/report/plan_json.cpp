// Plans and refusals for programs. Keys stay as they are; new ones may come.

#include <nlohmann/json.hpp>

#include "core/to_size.h"
#include "report/plan_table.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const BytesByRole& roles) {
  Json j = Json::object();
  for (const auto& [role, bytes] : sorted_roles(roles)) j[std::string(name_of(role))] = bytes.count;
  return j;
}

}  // namespace

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
            {"ram_of_this_machine", title.ram_of_this_machine},
            {"notes", view.notes}};
  if (title.sizes.parameters > 0) {
    j["trainable_parameters"] = title.sizes.parameters;
    if (title.sizes.batch > 0) j["effective_batch"] = title.sizes.batch;
  }
  if (const std::int64_t steps = epoch_steps(view); steps > 0 || view.total_steps > 0) {
    j["steps_per_epoch"] = steps;
    j["total_steps"] = view.total_steps;
    j["seconds_per_epoch"] = epoch_seconds(view);
  }
  if (!view.step_seconds.empty()) j["seconds_per_step"] = view.step_seconds[0];
  const auto tier_lines = [&](Tier t) { return sum_lines(view.lines, t); };
  for (const Tier t : kTiers) {
    j[std::string(name_of(t))] = {{"peak_bytes", (view.plan.peak_of(t) + tier_lines(t)).count},
                                  {"arena_bytes", view.plan.peak_of(t).count},
                                  {"budget_bytes", allowed_of(title.budget, t).count}};
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
  if (!view.files.lines.empty()) {
    Json files = {{"folder", view.files.folder}, {"bytes", view.files.bytes().count}};
    if (view.files.free) files["free_bytes"] = view.files.free->count;
    files["lines"] = Json::array();
    for (const ProcessLine& l : view.files.lines) {
      files["lines"].push_back({{"name", l.name}, {"bytes", l.bytes.count}});
    }
    j["files"] = std::move(files);
  }
  j["phases"] = Json::array();
  for (std::size_t p = 0; p < view.plan.programs.size(); ++p) {
    const ProgramUse& use = view.plan.programs[p];
    Json phase = {{"name", use.name},
                  {"seconds", view.times[p].seconds},
                  {"exposed_stall_seconds", view.times[p].exposed_stall}};
    for (const Tier t : kTiers) {
      const TierUse& u = use.tier(t);
      phase[std::string(name_of(t))] = {
          {"peak_bytes", (u.peak + tier_lines(t)).count},
          {"lower_bound_bytes", (u.lower_bound + tier_lines(t)).count},
          {"at", u.at},
          {"roles", json_of(u.roles)}};
    }
    if (use.name == "step") j["step_seconds"] = view.times[p].seconds;
    j["phases"].push_back(std::move(phase));
  }
  return j.dump(2) + "\n";
}

std::string refusal_json(const PlanTitle& title, const Refusal& refusal,
                         std::span<const PlannedChange> advice) {
  Json j = {{"fits", false},
            {"model", title.model},
            {"mode", title.mode},
            {"shape", title.shape},
            {"machine", title.machine},
            {"policy", refusal.policy},
            {"ram_of_this_machine", title.ram_of_this_machine},
            {"seconds_per_step", refusal.seconds_per_step}};
  for (const Tier t : kTiers) {
    j[std::string(name_of(t))] = {{"peak_bytes", refusal.needed[to_size(t)].count},
                                  {"budget_bytes", allowed_of(title.budget, t).count}};
  }
  j["shortages"] = Json::array();
  for (const Shortage& s : refusal.shortages) {
    j["shortages"].push_back({{"tier", name_of(s.tier)},
                              {"phase", s.program},
                              {"needed_bytes", s.needed.count},
                              {"allowed_bytes", s.allowed.count},
                              {"roles", json_of(s.roles)}});
  }
  j["advice"] = Json::array();
  for (const PlannedChange& c : advice) {
    Json needed = Json::object();
    for (const Tier t : kTiers) {
      needed[std::string(name_of(t))] = c.needed[to_size(t)].count;
    }
    j["advice"].push_back({{"change", c.text},
                           {"effect", effect_of(c, title.shared_ram)},
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
