#include "app/machine_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <climits>

#include "core/error.h"

namespace ballast {
namespace {

std::string dashed(std::string_view name) {
  std::string flag = "--" + std::string(name);
  std::ranges::replace(flag, '_', '-');
  return flag;
}

template <class Field>
constexpr bool kIsSwitch = std::is_same_v<Field, bool> || std::is_same_v<Field, Negated<bool>>;
// What help pages show behind a flag that takes a value.
template <class Field>
constexpr const char* kOperand = std::is_same_v<Field, int>                    ? "N"
                                 : std::is_same_v<Field, std::optional<Bytes>> ? "SIZE"
                                                                               : "NAME";

// Visits the named fields; fails on a name that is no field.
template <class Visit>
void visit_named(MachineOptions& o, std::initializer_list<std::string_view> names, Visit visit) {
  std::size_t found = 0;
  MachineOptions::fields(o, [&](std::string_view name, auto&& field, std::string_view help) {
    if (std::ranges::find(names, name) == names.end()) return;
    ++found;
    visit(dashed(name), field, std::string(help));
  });
  check(found == names.size(), "{} of {} machine options are known", found, names.size());
}

}  // namespace

void declare_machine(CLI::App& app, MachineOptions& to,
                     std::initializer_list<std::string_view> names) {
  visit_named(to, names, [&](const std::string& flag, auto& field, const std::string& help) {
    using Field = std::remove_cvref_t<decltype(field)>;
    if constexpr (std::is_same_v<Field, Negated<bool>>) {
      app.add_flag_callback(
          flag, [field] { field.of = false; }, help);
    } else if constexpr (std::is_same_v<Field, bool>) {
      app.add_flag(flag, field, help);
    } else if constexpr (std::is_same_v<Field, int>) {
      app.add_option(flag, field, help)
          ->type_name(kOperand<Field>)
          ->check(CLI::Range(0, INT_MAX, "COUNT"));
    } else {
      const std::function<void(const std::string&)> set =
          [flag, read = setter_of(field)](const std::string& text) {
            if (const auto fault = read(text)) {
              fail(ErrorCode::usage, "{}: {}", flag, *fault);
            }
          };
      app.add_option_function(flag, set, help)
          ->type_name(kOperand<Field>)
          ->default_str(option_text(field));
    }
  });
}

std::string machine_help(std::initializer_list<std::string_view> names) {
  MachineOptions none;
  std::string text;
  visit_named(none, names, [&](std::string flag, auto& field, const std::string& help) {
    using Field = std::remove_cvref_t<decltype(field)>;
    if constexpr (!kIsSwitch<Field>) flag += std::string(" ") + kOperand<Field>;
    text += fmt::format("  {:<20} {}\n", flag, help);
  });
  return text;
}

}  // namespace ballast
