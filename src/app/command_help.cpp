#include "app/command_help.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

namespace ballast {
namespace {

constexpr std::size_t kColumn = 30;  // where explanations begin

std::string line(const std::string& name, const std::string& help) {
  const bool apart = name.size() + 4 > kColumn;
  return apart ? fmt::format("  {}\n{:{}}{}\n", name, "", kColumn, help)
               : fmt::format("  {:<{}}{}\n", name, kColumn - 2, help);
}

bool takes_values(const CLI::Option& o) { return o.get_type_size() != 0; }
bool takes_many(const CLI::Option& o) {
  return o.get_expected_max() >= CLI::detail::expected_max_vector_size;
}

// What stands behind a name: "INT", "TEXT ...".
std::string operand(const CLI::Option& o) {
  if (!takes_values(o)) return "";
  const std::string type = o.get_type_name();  // "INT:INT in [1 - 64]" where values are checked
  std::string text = " " + type.substr(0, type.find(':'));
  if (takes_many(o)) text += " ...";
  if (o.get_required()) text += " REQUIRED";
  return text;
}

// Words that an option takes are in its description; numbers between which its value lies are not.
std::string explanation(const CLI::App& app, const CLI::Option& o) {
  if (&o == app.get_help_ptr()) return "this page";
  std::string text = o.get_description();
  if (!takes_values(o)) return text;
  const std::string type = o.get_type_name();
  const std::size_t least = type.find(" in ["), most = type.find(" - ", least);
  std::string more;
  if (most != std::string::npos) {
    more = fmt::format("{} to {}", type.substr(least + 5, most - least - 5),
                       type.substr(most + 3, type.find(']', most) - most - 3));
  }
  if (!o.get_default_str().empty()) {
    more += fmt::format("{}default {}", more.empty() ? "" : ", ", o.get_default_str());
  }
  return more.empty() ? text : fmt::format("{} ({})", text, more);
}

std::string flags_of(const CLI::Option& o) {
  std::string names;
  for (const std::string& n : o.get_snames()) names += (names.empty() ? "-" : ",-") + n;
  for (const std::string& n : o.get_lnames()) names += (names.empty() ? "--" : ",--") + n;
  return names;
}

std::string usage_of(const CLI::Option& o) {
  const std::string name = o.get_name(true) + (takes_many(o) ? "..." : "");
  return o.get_required() ? name : "[" + name + "]";
}

}  // namespace

std::string command_help(const CLI::App& app) {
  const auto parts = app.get_subcommands([](const CLI::App*) { return true; });
  std::string usage =
      (app.get_parent() != nullptr ? app.get_parent()->get_name() + " " : "") + app.get_name();
  usage += " [OPTIONS]";
  std::string positionals, options, commands;
  for (const CLI::Option* o : app.get_options()) {
    if (o->get_positional()) {
      usage += " " + usage_of(*o);
      positionals += line(o->get_name(true) + operand(*o), explanation(app, *o));
    }
    if (o->nonpositional()) options += line(flags_of(*o) + operand(*o), explanation(app, *o));
  }
  if (!parts.empty()) usage += " SUBCOMMAND";
  for (const CLI::App* p : parts) commands += line(p->get_name(), p->get_description());
  std::string text = fmt::format("{}\nUsage: {}\n", app.get_description(), usage);
  const auto section = [&](std::string_view title, const std::string& lines) {
    if (!lines.empty()) text += fmt::format("\n{}:\n{}", title, lines);
  };
  section("Positionals", positionals);
  section("Options", options);
  section("Subcommands", commands);
  const std::string footer = app.get_footer();
  return footer.empty() ? text : text + "\n" + footer + "\n";
}

}  // namespace ballast
