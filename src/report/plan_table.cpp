#include "report/plan_table.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "core/short_number.h"
#include "core/to_size.h"
#include "plan/display_names.h"

namespace ballast {

Bytes PlanFiles::bytes() const { return sum_lines(lines, Tier::disk); }

Bytes allowed_of(const Budget& b, Tier t) {
  return t == Tier::device ? b.gpu : t == Tier::host ? b.host : b.disk;
}

std::vector<std::pair<Role, Bytes>> sorted_roles(const BytesByRole& roles) {
  std::vector<std::pair<Role, Bytes>> all;
  for (int r = 0; r < kRoles; ++r) {
    const Bytes b = roles[to_size(r)];
    if (b.count > 0) all.emplace_back(static_cast<Role>(r), b);
  }
  std::ranges::stable_sort(all, [](const auto& a, const auto& b) { return a.second > b.second; });
  return all;
}

double epoch_seconds(const PlanView& view) {
  double sum = 0;
  for (std::size_t k = 0; k < view.step_seconds.size() && k < view.steps_of_kind.size(); ++k) {
    sum += view.step_seconds[k] * static_cast<double>(view.steps_of_kind[k]);
  }
  return sum;
}

std::int64_t epoch_steps(const PlanView& view) {
  return std::accumulate(view.steps_of_kind.begin(), view.steps_of_kind.end(), std::int64_t{0});
}

namespace {

std::string predicted_text(double s) {
  if (s >= 90) return fmt::format("{:.1f} min", s / 60);
  if (s >= 1) return fmt::format("{:.2f} s", s);
  return fmt::format("{:.1f} ms", s * 1e3);
}

std::string duration_text(double s) {
  if (s >= 36 * 3600) return fmt::format("{:.1f} days", s / 86400);
  if (s >= 5400) return fmt::format("{:.1f} h", s / 3600);
  return predicted_text(s);
}

// "step 6 % faster": of a factor on the time of a step.
std::string speed_text(double factor) {
  const double percent = (factor - 1) * 100;
  if (std::abs(percent) < 0.5) return "same step time";
  if (factor >= 2) return fmt::format("step takes {:.1f} times as long", factor);
  return fmt::format("step {:.0f} % {}", std::abs(percent), percent < 0 ? "faster" : "slower");
}

std::string sizes_text(const TrainingSizes& s) {
  std::string text = fmt::format("{} trainable parameters", short_count(s.parameters));
  if (s.batch > s.min_batch) {
    text += fmt::format(", effective batch {} to {}", s.min_batch, s.batch);
  } else if (s.batch > 0) {
    text += fmt::format(", effective batch {}", s.batch);
  }
  return text;
}

}  // namespace

std::string roles_text(const BytesByRole& roles, double min_share) {
  std::string text;
  const Bytes all = std::accumulate(roles.begin(), roles.end(), Bytes{});
  const double least = min_share * static_cast<double>(all.count);
  for (const auto& [role, bytes] : sorted_roles(roles)) {
    if (static_cast<double>(bytes.count) < least) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", display_name(role), bytes);
  }
  return text;
}

std::string effect_of(const PlannedChange& c, bool shared_ram) {
  std::string text;
  if (!c.fits) {
    text = fmt::format("not enough alone: {} short", c.missing);
  } else if (shared_ram) {
    text = fmt::format("fits: {} of RAM", c.needed[0] + c.needed[1]);
  } else {
    text = fmt::format("fits: {} of GPU memory, {} of RAM", c.needed[0], c.needed[1]);
  }
  if (c.fits && c.needed[2].count > 0) text += fmt::format(", {} on disk", c.needed[2]);
  return c.step_factor > 0 ? text + "; " + speed_text(c.step_factor) : text;
}

std::string labelled(std::string_view label, std::string_view text, std::size_t columns) {
  constexpr std::size_t kLabel = 11;
  return wrapped(fmt::format("{:<{}}", label, kLabel), text, columns, kLabel) + "\n";
}

std::string title_text(const PlanTitle& title, std::size_t columns) {
  std::string text =
      labelled("run", fmt::format("{} {}: {}", title.model, title.mode, title.shape), columns);
  if (title.sizes.parameters > 0) text += labelled("trains", sizes_text(title.sizes), columns);
  if (title.ram_of_this_machine) {
    text += labelled("RAM",
                     fmt::format("{} allowed is this machine's, not the target's; --ram sets the "
                                 "target's",
                                 title.budget.host),
                     columns);
  }
  return text;
}

std::string notes_text(std::span<const std::string> notes, std::size_t columns) {
  struct Group {
    std::vector<std::string_view> names;  // "--a", "--b" of "--a: ignored" and "--b: ignored"
    std::string_view text;
  };
  std::vector<Group> groups;
  for (const std::string_view note : notes) {
    const std::size_t colon = note.find(": ");
    const std::string_view name = colon == note.npos ? note : note.substr(0, colon);
    const std::string_view text = colon == note.npos ? "" : note.substr(colon);
    auto at = std::ranges::find_if(groups,
                                   [&](const Group& g) { return g.text == text && !text.empty(); });
    if (at == groups.end()) at = groups.insert(groups.end(), {{}, text});
    if (std::ranges::find(at->names, name) == at->names.end()) at->names.push_back(name);
  }
  std::string all;
  std::vector<std::string> said;
  for (const Group& g : groups) {
    const std::string note = fmt::format("{}{}", fmt::join(g.names, ", "), g.text);
    if (std::ranges::find(said, note) != said.end()) continue;
    said.push_back(note);
    all += wrapped("  - ", note, columns, 4) + "\n";
  }
  return all.empty() ? all : "\nnotes\n" + all;
}

std::string details_hint() {
  return "\n--details shows memory and predicted time by phase, and memory outside the plan\n";
}

std::string step_text(double seconds, const PassTimes& passes) {
  std::string text = predicted_text(seconds);
  if (passes.count > 1) {
    const std::string longest = predicted_text(passes.longest);
    const bool alike = predicted_text(passes.shortest) == longest;
    text += fmt::format(" ({} passes of {}{})", passes.count,
                        alike ? "" : predicted_text(passes.shortest) + " to ", longest);
  }
  if (passes.waiting > 0.005 * seconds) {
    text += fmt::format(", of which {} waiting for data", predicted_text(passes.waiting));
  }
  return text;
}

namespace {

// Programs that differ only in shape or expert are one phase for people.
struct PhaseRow {
  std::string_view name;
  std::vector<std::size_t> programs;
};

std::vector<PhaseRow> phases_of(const PlanView& view) {
  constexpr std::array<std::string_view, 16> kOrder = {
      "load",           "init_state", "after_restore", "distill", "step",    "student",
      "zero_gradients", "grad_norm",  "update",        "eval",    "predict", "preview",
      "measure",        "read",       "next",          "reorder"};
  std::vector<PhaseRow> phases;
  for (const std::string_view program : kOrder) {
    const std::string_view phase = phase_name(program);
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

// Remarks have a column of their own, where there is room for one.
std::size_t remark_indent(const std::string& first, const PlanStyle& style) {
  return style.columns == 0 || style.columns >= 80 ? width_of(first) : 4;
}

// A table of memory: a name, a kind of memory, bytes, a remark.
std::string memory_row(std::string_view name, std::string_view memory, std::string_view bytes,
                       std::string_view remark, const PlanStyle& style) {
  const std::string first = fmt::format("{:<27} {:<10} {:>10}  ", name, memory, bytes);
  return wrapped(first, remark, style.columns, remark_indent(first, style)) + "\n";
}

// On the CPU the device tier is RAM that compute works in.
std::string_view short_memory_name(Tier t, const PlanTitle& title) {
  return t == Tier::device && title.shared_ram ? "RAM, --gpu" : memory_name(t);
}

std::string peaks_text(const PlanTitle& title, const PlanView& view, const PlanStyle& style) {
  std::string text = "\nmemory by phase\n";
  for (const PhaseRow& phase : phases_of(view)) {
    for (const Tier t : kTiers) {
      const TierUse* most = nullptr;
      for (const std::size_t p : phase.programs) {
        const TierUse& use = view.plan.programs[p].tier(t);
        if (most == nullptr || use.peak > most->peak) most = &use;
      }
      // What is always there is said once.
      const bool always = most->peak == view.plan.persistent[to_size(t)];
      if (most->peak.count == 0 || (always && phase.name != "load")) continue;
      text += memory_row(phase.name, short_memory_name(t, title), to_string(most->peak),
                         roles_text(most->roles), style);
    }
  }
  return text;
}

std::string outside_text(const PlanTitle& title, const PlanView& view, const PlanStyle& style) {
  std::string text = "\nmemory outside the plan's buffers\n";
  for (const ProcessLine& l : view.lines) {
    text +=
        memory_row(l.name, short_memory_name(l.tier, title), to_string(l.bytes), l.reason, style);
  }
  return text;
}

std::string files_text(const PlanView& view, const PlanStyle& style) {
  if (view.files.lines.empty()) return "";
  std::string text = fmt::format("\nfiles of the run, in {}\n", printable(view.files.folder));
  for (const ProcessLine& l : view.files.lines) {
    text += memory_row(l.name, "disk", to_string(l.bytes), l.reason, style);
  }
  return text;
}

std::string times_text(const PlanView& view, const PlanStyle& style) {
  if (view.times.empty()) return "";
  std::string text = "\npredicted time by phase\n";
  for (const PhaseRow& phase : phases_of(view)) {
    const PredictedTime* most = nullptr;
    for (const std::size_t p : phase.programs) {
      if (most == nullptr || view.times[p].seconds > most->seconds) most = &view.times[p];
    }
    std::string more = phase.name == "step" ? "one pass" : "";
    const auto kinds = std::ranges::count_if(phase.programs, [&](std::size_t p) {
      return view.plan.programs[p].name != "zero_gradients";
    });
    if (kinds > 1) {
      more += fmt::format("{}the longest of {} kinds", more.empty() ? "" : ", ", kinds);
    }
    if (most->exposed_stall > 0.005 * most->seconds) {
      more += fmt::format("{}of which {} waiting for data", more.empty() ? "" : ", ",
                          predicted_text(most->exposed_stall));
    }
    const std::string first = fmt::format("{:<27} {:>10}{}", phase.name,
                                          predicted_text(most->seconds), more.empty() ? "" : "  ");
    text += wrapped(first, more, style.columns, remark_indent(first, style)) + "\n";
  }
  return text;
}

// Planned bytes of all of a run: the stages around it may need more than it does.
struct Totals {
  Bytes device, host, both, disk;
  std::optional<Bytes> pinned = {};
};

void cover(Totals& t, std::span<const PlanStage> stages) {
  for (const PlanStage& s : stages) {
    t.both = std::max(t.both, s.device + s.host);
    t.device = std::max(t.device, s.device);
    t.host = std::max(t.host, s.host);
  }
}

Totals totals_of(const PlanView& view) {
  Totals t;
  t.device = view.plan.peak_of(Tier::device) + sum_lines(view.lines, Tier::device);
  t.host = view.plan.peak_of(Tier::host) + sum_lines(view.lines, Tier::host);
  t.both = t.device + t.host;
  t.disk = view.plan.peak_of(Tier::disk) + sum_lines(view.lines, Tier::disk);
  t.pinned = view.plan.peak_of(Tier::host);
  cover(t, view.stages);
  return t;
}

// "fits: 9.260 GB of 24.00 GB GPU memory, 3.400 GB of 32.00 GB RAM"
std::string verdict_text(const Budget& budget, bool shared_ram, const Totals& t) {
  const auto share = [](Bytes needed, Bytes allowed, std::string_view memory) {
    return fmt::format("{} of {} {}", needed, allowed, memory);
  };
  std::string text = "fits: ";
  if (!shared_ram) text += share(t.device, budget.gpu, "GPU memory") + ", ";
  text += share(shared_ram ? t.both : t.host, budget.host, "RAM");
  if (t.disk.count > 0) text += ", " + share(t.disk, budget.disk, "disk");
  return text;
}

std::string totals_text(const Budget& budget, bool shared_ram, const Totals& t) {
  std::string text =
      fmt::format("\n{:<27} {:>10} {:>10} {:>10}\n", "memory", "planned", "allowed", "free");
  const auto row = [&](std::string_view name, Bytes needed, Bytes allowed) {
    text += fmt::format("{:<27} {:>10} {:>10} {:>10}\n", name, to_string(needed),
                        to_string(allowed), to_string(allowed - std::min(needed, allowed)));
  };
  row(memory_name(Tier::device, shared_ram), t.device, budget.gpu);
  row(memory_name(Tier::host), shared_ram ? t.both : t.host, budget.host);
  if (!shared_ram && t.pinned) {
    text += fmt::format("{:<27} {:>10}\n", "  of it pinned for the GPU", to_string(*t.pinned));
  }
  row(memory_name(Tier::disk), t.disk, budget.disk);
  return text;
}

// A row of the totals: the files share the disk with what the plan holds there.
std::string files_total(const PlanView& view) {
  if (view.files.lines.empty()) return "";
  const Bytes bytes = view.files.bytes();
  const Bytes held = view.plan.peak_of(Tier::disk);
  std::string allowed = "-", free = "-";
  if (view.files.free) {
    const Bytes all = *view.files.free - std::min(*view.files.free, held);
    allowed = to_string(all);
    free = to_string(all - std::min(all, bytes));
  }
  return fmt::format("{:<27} {:>10} {:>10} {:>10}\n", "files of the run", to_string(bytes), allowed,
                     free);
}

std::string stages_text(std::span<const PlanStage> stages, bool shared_ram, std::size_t columns) {
  std::string text;
  for (const PlanStage& s : stages) {
    const std::string memory = shared_ram
                                   ? fmt::format("{} of RAM", s.device + s.host)
                                   : fmt::format("{} of GPU memory, {} of RAM", s.device, s.host);
    text += labelled(s.name, fmt::format("{}; {}", memory, s.how), columns);
  }
  return text;
}

// The longest kind of step, the epoch and the run.
std::string step_lines(const PlanView& view, const PlanStyle& style) {
  if (view.step_seconds.empty()) return "";
  const auto longest = std::ranges::max_element(view.step_seconds);
  const auto kind = to_size(longest - view.step_seconds.begin());
  std::string text =
      step_text(*longest, kind < view.passes.size() ? view.passes[kind] : PassTimes{});
  if (view.step_seconds.size() > 1) {
    text += fmt::format("; the longest of {} kinds of steps", view.step_seconds.size());
  }
  text = labelled(view.step_label, text, style.columns);
  const std::int64_t in_epoch = epoch_steps(view);
  if (in_epoch == 0) return text;
  text += labelled("epoch",
                   fmt::format("{} ({} step{})", duration_text(epoch_seconds(view)), in_epoch,
                               in_epoch == 1 ? "" : "s"),
                   style.columns);
  const double whole =
      epoch_seconds(view) / static_cast<double>(in_epoch) * static_cast<double>(view.total_steps);
  return text +
         labelled(
             "whole run",
             fmt::format("{} ({} step{}); saving, evaluation and previews take extra time",
                         duration_text(whole), view.total_steps, view.total_steps == 1 ? "" : "s"),
             style.columns);
}

// What is run, where, how, and how fast.
std::string head_text(const PlanTitle& title, const PlanView& view, const PlanStyle& style) {
  std::string facts;
  for (const PlanFact& f : view.facts) facts += labelled(f.label, f.text, style.columns);
  return "\n" + title_text(title, style.columns) +
         labelled("machine", title.machine, style.columns) +
         labelled("policy",
                  view.policy == "auto" ? view.policy_text
                                        : fmt::format("{}: {}", view.policy, view.policy_text),
                  style.columns) +
         step_lines(view, style) + facts +
         stages_text(view.stages, title.shared_ram, style.columns);
}

}  // namespace

std::string plan_table(const PlanTitle& title, const PlanView& view, const PlanStyle& style) {
  const Totals totals = totals_of(view);
  const std::string text =
      wrapped("", verdict_text(title.budget, title.shared_ram, totals), style.columns, 6) + "\n" +
      totals_text(title.budget, title.shared_ram, totals) + files_total(view) +
      head_text(title, view, style) + notes_text(view.notes, style.columns);
  if (!style.details) return text + details_hint();
  return text + peaks_text(title, view, style) + outside_text(title, view, style) +
         files_text(view, style) + times_text(view, style);
}

std::string stages_table(const Budget& budget, bool shared_ram, std::span<const PlanStage> stages,
                         std::size_t columns) {
  Totals totals;
  cover(totals, stages);
  return wrapped("", verdict_text(budget, shared_ram, totals), columns, 6) + "\n" +
         totals_text(budget, shared_ram, totals) + "\n" + stages_text(stages, shared_ram, columns);
}

std::string verdict_line(const PlanTitle& title, const PlanView& view) {
  return verdict_text(title.budget, title.shared_ram, totals_of(view));
}

std::vector<Advice> advice_of(std::span<const PlannedChange> changes, bool shared_ram) {
  std::vector<Advice> advice;
  for (const PlannedChange& c : changes) advice.push_back({c.text, effect_of(c, shared_ram)});
  return advice;
}

}  // namespace ballast
