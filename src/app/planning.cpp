#include "app/planning.h"

#include <charconv>

#include "app/output.h"
#include "core/error.h"
#include "core/log.h"
#include "core/nearest_name.h"
#include "core/progress.h"
#include "train/config_words.h"

namespace ballast {
[[noreturn]] void fail_unknown(std::string_view flag, const std::string& value,
                               const std::vector<std::string_view>& known) {
  fail(ErrorCode::usage, fmt::format("{} {} is unknown{}: known are {}", flag, printable(value),
                                     suggestion(value, known), joined(known)));
}

VerifyWeights verify_weights_of(const std::string& name) {
  if (const auto value = train::meaning_of(train::kVerifyWords, name)) return *value;
  fail_unknown("--verify-weights", name, {"sampled", "all", "off"});
}

train::RunTarget find_target(const std::string& name, const train::ComputeOptions& options) {
  if (name == "this") return train::this_machine(options);
  if (const auto p = find_profile(name)) return target_of(*p, options);
  std::vector<std::string_view> known = {"this"};
  for (const MachineProfile& p : bundled_profiles()) known.push_back(p.name);
  fail_unknown("--target", name, known);
}

std::string own_flags_help() {
  return "General options:\n"
         "  --threads N                     compute threads (0: all)\n"
         "  --target NAME                   plan for this machine (this), or for one of\n" +
         bundled_names("                                  ") +
         "  --details                       the plan with its phases and predicted times\n"
         "  --json                          print JSON lines only, sizes in bytes\n"
         "  --ignore_limits                 plan beyond what the system allows (control\n"
         "                                  groups, ulimit, free memory and disk space)\n"
         "  --check_nan                     find the instruction that made a NaN: slow\n";
}

OwnFlags split_own_flags(const std::vector<std::string>& arguments) {
  OwnFlags own;
  const auto value = [&](std::size_t& i, std::string_view flag) -> std::optional<std::string> {
    const std::string& a = arguments[i];
    if (a.starts_with(std::string(flag) + "=")) return a.substr(flag.size() + 1);
    if (a != flag) return std::nullopt;
    if (i + 1 == arguments.size()) fail(ErrorCode::usage, fmt::format("{} needs a value", flag));
    return arguments[++i];
  };
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--json") {
      own.json = true;
    } else if (arguments[i] == "--check-nan") {
      own.check_nan = true;
    } else if (arguments[i] == "--ignore-limits") {
      own.ignore_limits = true;
    } else if (arguments[i] == "--details") {
      own.details = true;
    } else if (const auto target = value(i, "--target")) {
      own.target = *target;
    } else if (const auto count = value(i, "--threads")) {
      const auto end = std::from_chars(count->data(), count->data() + count->size(), own.threads);
      if (end.ec != std::errc() || end.ptr != count->data() + count->size() || own.threads < 0) {
        fail(ErrorCode::usage, fmt::format("--threads {}: expected a number", printable(*count)));
      }
    } else {
      own.rest.push_back(arguments[i]);
    }
  }
  return own;
}

void show_plan(const PlanTitle& title, const wan::FitRequest& request, const wan::PlannedRun& run,
               const PlanOutput& output, const train::PreparedRun* whole) {
  print_plan(title, train::view_of(request, run, whole), output);
}

void tell_refusal(const PlanTitle& title, const Refusal& refusal, bool policy_given,
                  std::span<const std::string> notes) {
  log::info("{}",
            refusal_text(
                refusal, title,
                {.policy_given = policy_given, .notes = notes, .columns = text_columns(stderr)}));
}

void fail_with_advice(const PlanTitle& title, const Refusal& refusal, std::vector<Advice> advice) {
  const std::string verdict = refusal_verdict(refusal, title);
  if (log::level() > log::Level::info) fail(ErrorCode::refused, verdict, std::move(advice));
  throw ShownError(ErrorCode::refused, verdict, std::move(advice));
}

void fail_refused(const PlanTitle& title, const wan::FitRequest& request, const Refusal& refusal,
                  wan::KnownNeeds known, const std::function<std::vector<wan::Change>()>& changes,
                  bool json, std::span<const std::string> notes) {
  tell_refusal(title, refusal, request.policy.has_value(), notes);
  std::vector<PlannedChange> planned;
  {
    Progress progress("planning what would help", 0);
    const std::vector<wan::Change> all = changes();
    planned = try_changes(
        request, refusal, all, [&] { progress.add(); }, std::move(known));
  }
  if (json) print_json_line(refusal_json(title, refusal, planned));
  fail_with_advice(title, refusal, advice_of(planned, title.shared_ram));
}

}  // namespace ballast
