#include "train/run_plan.h"

#include <algorithm>

namespace ballast::train {
namespace {

std::string weights_text(const MemoryPolicy& p, const wan::Config& config) {
  if (p.slots == 0) return "weights resident";
  const std::int64_t streamed = streamed_blocks(config, p), from_host = blocks_from_host(config, p);
  const bool host = p.home == WeightHome::host || (from_host > 0 && from_host == streamed);
  const std::string from = host             ? "host memory"
                           : from_host == 0 ? "disk"
                                            : fmt::format("disk ({}) and host memory ({})",
                                                          streamed - from_host, from_host);
  return fmt::format("weights of {} of {} blocks streamed from {} ", streamed, config.layers, from);
}

std::string describe(const MemoryPolicy& p, const wan::Config& config) {
  std::string text = weights_text(p, config);
  if (p.parts > 0) {
    text += fmt::format("matrix by matrix, {} ahead", p.parts);
  } else if (p.slots > 0) {
    text += fmt::format("through {} slot{}", p.slots, p.slots == 1 ? "" : "s");
  }
  text += fmt::format("; activations {}", name_of(p.activations));
  if (p.kept_blocks > 0)
    text += fmt::format(", all of them in {} of {} blocks", p.kept_blocks, config.layers);
  if (p.offload) text += ", offloaded to host memory";
  if (p.disk_state_groups > 0) {
    const int groups = group_count(config), on_disk = std::min(groups, p.disk_state_groups);
    text += on_disk == groups
                ? "; optimizer state on disk"
                : fmt::format("; optimizer state of {} of {} groups on disk", on_disk, groups);
  }
  if (p.halves) text += "; backward restores half a block at a time";
  if (p.chunk_tokens > 0) text += fmt::format("; chunks of {} tokens", p.chunk_tokens);
  if (p.heads_per_group > 0)
    text += fmt::format("; attention backward {} head{} at a time", p.heads_per_group,
                        p.heads_per_group == 1 ? "" : "s");
  return text;
}

}  // namespace

PlanTitle title_of(const PreparedRun& run) {
  const wan::FitRequest& r = run.request;
  std::string shape = run.shapes;
  if (r.job.mode == wan::Mode::lora) shape = fmt::format("rank {}, {}", r.job.lora.rank, shape);
  if (r.experts.size() > 1) shape = "both experts, " + shape;
  return {.model = r.job.config.name,
          .mode = std::string(name_of(r.job.mode)),
          .shape = shape,
          .weights = weights_text(r.job),
          .machine = machine_text(r.profile),
          .budget = r.budget,
          .shared_ram = r.profile.device == Device::cpu};
}

PlanView view_of(const wan::FitRequest& request, const wan::PlannedRun& planned,
                 const PreparedRun* whole) {
  const wan::Config& config = request.job.config;
  PlanView view = {.plan = planned.plan,
                   .times = planned.times,
                   .lines = planned.lines,
                   .policy = planned.policy.name,
                   .policy_text = describe(planned.policy, config),
                   .streamed_blocks = streamed_blocks(config, planned.policy)};
  for (std::size_t k = 0; k < planned.parts.size(); ++k) {
    view.step_seconds.push_back(planned.seconds_of_step(k));
  }
  if (!whole) return view;
  view.steps_of_kind = whole->kind_steps;
  view.total_steps = whole->steps_per_epoch > 0 ? whole->total_steps : 0;
  view.notes = whole->notes;
  if (whole->previews) {
    for (std::string& n : whole->previews->notes(planned)) view.notes.push_back(std::move(n));
  }
  if (const auto allowed = whole->config.memory.blocks_to_swap) {
    view.notes.push_back(
        fmt::format("blocks_to_swap = {} is a hint: {} of {} blocks stay resident{}", *allowed,
                    config.layers - view.streamed_blocks, config.layers,
                    view.streamed_blocks > *allowed ? ", there is no room for more" : ""));
  }
  return view;
}

// "refused: device and host memory is short"
std::string refusal_message(const Refusal& refusal) {
  std::string tiers;
  for (const Shortage& s : refusal.shortages) {
    tiers += fmt::format("{}{}", tiers.empty() ? "" : " and ", name_of(s.tier));
  }
  return fmt::format("refused: {} memory is short", tiers);
}

std::string refusal_reason(const PlanTitle& title, const wan::FitRequest& request,
                           const Refusal& refusal) {
  std::string reason = request.policy
                           ? fmt::format("the run does not fit under policy {}", refusal.policy)
                           : fmt::format("the run does not fit, not even under {}", refusal.policy);
  for (const Shortage& s : refusal.shortages) reason += "\n" + describe_shortage(s, title);
  return reason;
}

}  // namespace ballast::train
