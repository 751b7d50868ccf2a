#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/command_help.h"
#include "app/commands/sample_student.h"
#include "app/help_text.h"
#include "core/error.h"
#include "train/config/config.h"

namespace ballast {
namespace {

std::string page(const std::string& title, const std::string& help) {
  std::string text = fit_columns(help);
  text.erase(0, text.find_first_not_of('\n'));
  text.erase(text.find_last_not_of('\n') + 1);
  return fmt::format("\n## {}\n\n```\n{}\n```\n", title, text);
}

template <class Options>
std::string keys(std::string_view title) {
  std::string text = fmt::format("\n## {}\n\n| key | meaning |\n|---|---|\n", title);
  Options none;
  Options::fields(none, [&](std::string_view name, auto&, std::string_view help, const auto&...) {
    text += fmt::format("| `{}` | {} |\n", name, help);
  });
  return text;
}

}  // namespace

std::string flag_reference() {
  std::string text =
      "# Flags\n\n"
      "The help pages of the program. This page is generated; do not edit it:\n\n"
      "```\nballast help --markdown > docs/flags.md\n```\n\n"
      "Dashes and underscores in names of flags are alike. Sizes have a unit: `24GB`, `512MiB`.\n";
  for (const CommandInfo& c : commands()) {
    const std::unique_ptr<Command> command = c.make();
    CLI::App app(std::string(c.summary), "ballast " + std::string(c.name));
    command->declare(app);
    text += page(app.get_name(), command->help_page({"--help"}).value_or(command_help(app)));
    for (const CLI::App* part : app.get_subcommands([](const CLI::App*) { return true; })) {
      text += page(app.get_name() + " " + part->get_name(), command_help(*part));
    }
  }
  text += page("Options of ballast train, plan and cache", *training_help("train", {"--help-all"}));
  text += page("Options of ballast sample --model_path", StudentSample().flags_help());
  text += keys<train::Dmd2Options>("Keys of [distill] with method = 'dmd2'");
  text += keys<train::StudentConfig>("Keys of [distill] with method = 'mse'");
  return text + keys<train::VaeConfig>("Keys of [model] with type = 'wan_vae'");
}

}  // namespace ballast
