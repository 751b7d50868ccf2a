#include "app/planning.h"

#include <algorithm>

#include "app/output.h"
#include "app/plan_pages.h"
#include "app/planning_heap.h"
#include "core/error.h"
#include "core/log.h"
#include "core/nearest_name.h"
#include "core/progress.h"
#include "core/system_limits.h"

namespace ballast {
[[noreturn]] void fail_unknown(std::string_view flag, const std::string& value,
                               const std::vector<std::string_view>& known) {
  fail(ErrorCode::usage, "{} {} is unknown{}: known are {}", flag, printable(value),
       suggestion(value, known), joined(known));
}

train::RunTarget find_target(const std::string& name, const MachineOptions& options) {
  if (name == "this") return train::this_machine(options);
  if (const auto p = find_profile(name)) return train::target_of(*p, options);
  std::vector<std::string_view> known = {"this"};
  for (const MachineProfile& p : bundled_profiles()) known.push_back(p.name);
  fail_unknown("--target", name, known);
}

PlanOutput plan_output(const OwnFlags& own) {
  return {.json = own.json,
          .steps = own.steps,
          .details = own.details,
          .ignore_limits = own.ignore_limits,
          .html = own.html,
          .others = own.others};
}

void apply(const OwnFlags& own, MachineOptions& to) {
  to.threads = own.threads;
  to.ignore_limits = own.ignore_limits;
}

namespace {

train::FlagTable own_flags(OwnFlags& own, MachineOptions& machine,
                           std::vector<std::string>& notes) {
  train::FlagTable t(&notes);
  constexpr std::string_view kMachine[] = {"threads", "ignore_limits", "json"};
  t.add(machine, kMachine);
  t.add("target", own.target, "this machine (this), or one to plan for: " + bundled_names());
  t.add("details", own.details, "the plan with its phases and predicted times");
  t.add("check_nan", own.check_nan, "find the instruction that made a NaN: slow");
  t.add("serve", own.serve, "a live page of the run in the browser, at this port (:8080)");
  return t;
}

}  // namespace

std::string own_flags_help() {
  OwnFlags own;
  MachineOptions machine;
  std::vector<std::string> notes;
  return "General options:\n" + own_flags(own, machine, notes).help();
}

std::vector<train::FlagInfo> own_flag_infos() {
  OwnFlags own;
  MachineOptions machine;
  std::vector<std::string> notes;
  return own_flags(own, machine, notes).honoured();
}

namespace {

// "--serve", "--serve=:8080", or "--serve" and ":8080" behind it: whether it is one, and the port.
bool take_serve(std::span<const std::string> arguments, std::size_t& i, OwnFlags& own) {
  constexpr std::string_view kFlag = "--serve";
  const std::string& argument = arguments[i];
  const bool joined = argument.starts_with("--serve=");
  if (argument != kFlag && !joined) return false;
  std::string_view port = joined ? std::string_view(argument).substr(kFlag.size() + 1) : ":8080";
  if (!joined && i + 1 < arguments.size() && arguments[i + 1].starts_with(':')) {
    port = arguments[++i];
  }
  if (port.starts_with(':')) port.remove_prefix(1);
  if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != port.npos) {
    fail(ErrorCode::usage,
         fmt::format("--serve {}: expected a port such as :8080", printable(port)));
  }
  own.serve = port;
  return true;
}

}  // namespace

OwnFlags split_own_flags(const std::vector<std::string>& arguments, bool prints_steps) {
  OwnFlags own;
  MachineOptions machine;
  std::vector<std::string> notes, ours;
  const train::FlagTable table = own_flags(own, machine, notes);
  const std::vector<std::string> switches = table.switches();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (prints_steps && arguments[i].starts_with("--json=")) {
      if (arguments[i] != "--json=steps") {
        fail(ErrorCode::usage, "{}: expected --json or --json=steps", printable(arguments[i]));
      }
      own.steps = true;
      continue;
    }
    if (take_serve(arguments, i, own)) continue;
    const std::span<const std::string> one(&arguments[i], 1);
    const bool flag = one[0].starts_with("--") && one[0].size() > 2;
    const train::CommandLine line = train::split_arguments(one, switches);
    const bool known = flag && table.knows(line.settings[0].name);
    (known ? ours : own.rest).push_back(one[0]);
    const bool takes_next = known && line.settings[0].values.empty() &&
                            std::ranges::find(switches, line.settings[0].name) == switches.end();
    if (takes_next && i + 1 < arguments.size()) ours.push_back(arguments[++i]);
  }
  table.read(train::split_arguments(ours, switches).settings);
  own.threads = machine.threads;
  own.ignore_limits = machine.ignore_limits;
  own.json = machine.json || own.steps;
  return own;
}

void show_plan(const PlanTitle& title, const fit::Request& request, const fit::PlannedRun& run,
               const PlanView& view, const PlanOutput& output) {
  require_disk_space(title, view, output);
  print_plan(title, view, output);
  save_plan_page(output, title, request, run, view);
}

void require_disk_space(const PlanTitle& title, const PlanView& view, const PlanOutput& output) {
  const PlanFiles& files = view.files;
  if (!files.free) return;
  const auto limit = file_size_limit();
  const Bytes largest = std::max(files.largest, view.plan.peak_of(Tier::disk));
  if (limit && largest > *limit) {
    const std::string text = fmt::format(
        "ulimit -f allows files of {}, the largest of this run takes {}", *limit, largest);
    if (!output.ignore_limits) {
      fail(ErrorCode::refused, "does not fit: " + text,
           {{"ulimit -f unlimited", "lifts the limit"}});
    }
    log::warn("{} (--ignore-limits)", text);
  }
  const Bytes held = view.plan.peak_of(Tier::disk), needed = held + files.bytes();
  if (needed <= *files.free) return;
  if (output.ignore_limits) {
    log::warn(
        "files of this run take {} in {}, {} are free: it ends when the disk is full "
        "(--ignore-limits)",
        needed, printable(files.folder), *files.free);
    return;
  }
  const Bytes missing = needed - *files.free;
  std::string text =
      fmt::format("does not fit: {} more disk space needed in {}: {} needed, {} free", missing,
                  printable(files.folder), needed, *files.free);
  Shortage shortage = {.tier = Tier::disk,
                       .program = {},
                       .at = {},
                       .needed = needed,
                       .allowed = *files.free,
                       .roles = {}};
  const auto part = [&](const std::string& name, Bytes bytes, const std::string& reason) {
    text += fmt::format("\n  {:<20} {:>10}  {}", name, to_string(bytes), reason);
    shortage.outside.emplace_back(name, bytes);
  };
  if (held.count > 0) part("optimizer state", held, "while the run lasts");
  for (const ProcessLine& l : files.lines) part(l.name, l.bytes, l.reason);
  std::vector<Advice> advice;
  if (files.freed_by_one_checkpoint.count > 0) {
    const bool enough = files.freed_by_one_checkpoint >= missing;
    advice.push_back(
        {"--keep_checkpoints 1", fmt::format("takes {} less{}", files.freed_by_one_checkpoint,
                                             enough ? ": fits" : ", not enough alone")});
  }
  advice.push_back({"another output folder", fmt::format("on a disk with {} free", needed)});
  advice.push_back({fmt::format("free {} on that disk", missing), "then it fits"});
  advice.push_back({"--ignore-limits", "for a run that is to end before the disk is full"});
  if (output.json) {
    PlanTitle here = title;
    here.budget.disk = *files.free;
    const Refusal refusal = {
        .policy = view.policy,
        .needed = {view.plan.peak_of(Tier::device) + sum_lines(view.lines, Tier::device),
                   view.plan.peak_of(Tier::host) + sum_lines(view.lines, Tier::host), needed},
        .shortages = {shortage}};
    print_json_line(refusal_json(here, refusal, {}), output.kind("plan"));
  }
  fail(ErrorCode::refused, text, std::move(advice));
}

void print_refusal(const PlanTitle& title, const Refusal& refusal, bool policy_given,
                   std::span<const std::string> notes) {
  log::info("{}",
            fit::refusal_text(
                refusal, title,
                {.policy_given = policy_given, .notes = notes, .columns = text_columns(stderr)}));
}

void fail_with_advice(const PlanTitle& title, const Refusal& refusal, std::vector<Advice> advice) {
  const std::string verdict = fit::refusal_verdict(refusal, title);
  if (log::level() > log::Level::info) fail(ErrorCode::refused, verdict, std::move(advice));
  throw ShownError(ErrorCode::refused, verdict, std::move(advice));
}

void fail_refused(const PlanTitle& title, const fit::Request& request, const Refusal& refusal,
                  fit::NeedsCache known, const std::function<std::vector<fit::Change>()>& changes,
                  const PlanOutput& output, std::span<const std::string> notes,
                  std::span<const fit::Request> others) {
  print_refusal(title, refusal, request.policy.has_value(), notes);
  RefusalPage page(output, title, request, refusal, known);
  std::vector<PlannedChange> planned;
  {
    Progress progress("planning what would help", 0);
    const std::vector<fit::Change> all = changes();
    planned = try_changes(
        request, refusal, all, [&] { progress.add(); }, std::move(known), others, page.seen());
  }
  if (output.json) print_json_line(refusal_json(title, refusal, planned), output.kind("plan"));
  page.save(planned);
  fail_with_advice(title, refusal, advice_of(planned, title.shared_ram));
}

std::vector<fit::PlannedRun> require_plans(const std::vector<infer::CommandPart>& parts,
                                           const infer::PossibleChanges& changes,
                                           const PlanOutput& output) {
  const PlanningHeap heap;
  return infer::require_plans(
      parts, changes,
      [&](const infer::CommandPart& part, const Refusal& refusal, fit::NeedsCache known,
          const std::function<std::vector<fit::Change>()>& possible,
          std::span<const fit::Request> others) {
        fail_refused(part.title, part.request, refusal, std::move(known), possible, output, {},
                     others);
      });
}

}  // namespace ballast
