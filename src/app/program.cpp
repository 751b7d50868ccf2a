#include "app/program.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>

#include "app/command.h"
#include "app/command_help.h"
#include "app/completion.h"
#include "app/help_text.h"
#include "app/launcher.h"
#include "app/output.h"
#include "app/rank_session.h"
#include "core/error.h"
#include "core/log.h"
#include "core/nearest_name.h"
#include "core/system_limits.h"
#include "core/version.h"
#include "core/wrap_text.h"
#include "dist/launch_ranks.h"
#include "memory/gpu.h"

namespace ballast {
namespace {

std::string help() {
  std::string text =
      "Trains and runs large video and text transformers inside the memory you have.\n\n"
      "usage: ballast COMMAND [OPTIONS]\n\ncommands:\n";
  for (const CommandInfo& c : commands()) text += fmt::format("  {:<11} {}\n", c.name, c.summary);
  return text +
         "\n  ballast help COMMAND     its options\n"
         "  ballast --version        the version; with --json how it was built\n\n"
         "Configurations to begin with are in examples/, explanations in docs/.\n\n"
         "exit status: 0 done, 1 internal error (please report), 2 usage, 3 does not fit,\n"
         "4 bad input, 5 GPU, 6 file or disk, 7 results differ, 8 a rank was lost\n";
}

// null: not known, as where the sources were no git checkout.
std::string build_info_json() {
  const BuildInfo b = build_info();
  const auto text = [](std::string_view t) {
    return t.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(t);
  };
  nlohmann::ordered_json j = {{"version", version()},     {"commit", text(b.commit)},
                              {"clean", nullptr},         {"compiler", text(b.compiler)},
                              {"flags", text(b.flags)},   {"target", text(b.target)},
                              {"cuda", built_with_cuda()}};
  if (!b.commit.empty()) j["clean"] = b.clean;
  return j.dump(2) + "\n";
}

// "--blocks_to_swap=4" and "--blocks-to-swap=4" are the same. What follows "--" is left alone.
std::vector<std::string> with_dashes(std::vector<std::string> arguments) {
  for (std::string& argument : arguments) {
    if (argument == "--") break;
    if (!argument.starts_with("--")) continue;
    const auto end = argument.begin() +
                     static_cast<std::ptrdiff_t>(std::min(argument.find('='), argument.size()));
    std::replace(argument.begin(), end, '_', '-');
  }
  return arguments;
}

// Somebody pasted a trainer's line and left out what is to be done with it.
[[noreturn]] void fail_without_command(std::string_view first) {
  fail(ErrorCode::usage,
       fmt::format("{} begins a trainer's command line: first say what to do with it",
                   printable(first.substr(0, first.find('=')))),
       {{"ballast plan ...", "with the whole line behind it: what the run will use"},
        {"ballast train ...", "trains (or cache, distill, sample: see ballast --help)"}});
}

const CommandInfo& find_command(std::string_view name) {
  std::vector<std::string_view> known;
  for (const CommandInfo& c : commands()) {
    if (c.name == name) return c;
    known.push_back(c.name);
  }
  const bool flag = name.starts_with('-');
  if (flag) known = {"--help", "--version"};
  fail(ErrorCode::usage,
       fmt::format("there is no {} {}{}", flag ? "option" : "command", printable(name),
                   suggestion(name, known)),
       {{"ballast --help", "lists the commands"}});
}

// Before parsing, so that a mistyped option is named as such and not taken for a missing argument.
void refuse_unknown_options(const CLI::App& app, const std::string& command,
                            const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    if (argument == "--") return;
    if (!argument.starts_with("--")) continue;
    const std::string name = argument.substr(0, argument.find('='));
    if (app.get_option_no_throw(name)) continue;
    std::vector<std::string> long_names;
    for (const CLI::Option* option : app.get_options()) {
      for (const std::string& n : option->get_lnames()) long_names.push_back("--" + n);
    }
    fail(ErrorCode::usage,
         fmt::format(
             "{} has no option {}{}", command, printable(name),
             suggestion(name, std::vector<std::string_view>(long_names.begin(), long_names.end()))),
         {{command + " --help", "lists its options"}});
  }
}

// The part of a command that its first argument names (bench wan), or the command itself.
CLI::App& part_named(CLI::App& app, const std::vector<std::string>& arguments) {
  for (CLI::App* part : app.get_subcommands([](CLI::App*) { return true; })) {
    if (!arguments.empty() && part->get_name() == arguments.front()) return *part;
  }
  return app;
}

bool asks_for_help(const std::vector<std::string>& arguments) {
  return std::ranges::any_of(
      arguments, [](const std::string& a) { return a.starts_with("--help") || a == "-h"; });
}

// Where a launcher started several processes, one of them does the work.
constexpr std::string_view kOnceInAJob[] = {"cache", "convert", "distill", "generate",
                                            "plan",  "sample",  "train"};

// Of this process, where our launcher started it.
std::optional<RankPlace> place;

// Results and progress are those of rank 0.
void speak_as_rank(const RankPlace& p) {
  if (p.rank == 0) return;
  log::set_rank(p.rank);
  const char* const asked = std::getenv("BALLAST_LOG");
  if (asked == nullptr || *asked == '\0') log::set_level(log::Level::warn);
}

struct OwnArguments {
  std::vector<std::string> arguments;
  int ranks = 1;  // to be started; 1: this process does the work
};

// The arguments of the command itself; nullopt: another process of this job does the work.
std::optional<OwnArguments> own_arguments(std::string_view command,
                                          std::vector<std::string> arguments) {
  PastedLine line = strip_launcher(command, std::move(arguments));
  OwnArguments own;
  if (command == "train") {
    const std::optional<int> asked = take_ranks(line.arguments);
    place = this_rank();
    if (place) speak_as_rank(*place);
    if (place && asked && *asked != place->ranks) {
      fail(ErrorCode::usage,
           "--ranks {} in a job of {} ranks (BALLAST_RANKS={}): expected the same number", *asked,
           place->ranks, place->ranks);
    }
    if (place) RankSession::begin(*place);
    if (!place && !asks_for_help(line.arguments)) own.ranks = asked.value_or(1);
  }
  if (!asks_for_help(line.arguments)) {
    if (own.ranks == 1) {  // else rank 0 says it
      for (const std::string& note : line.notes) log::info("{}", note);
    }
    if (!place && std::ranges::find(kOnceInAJob, command) != std::end(kOnceInAJob)) {
      const JobProcess process = job_process();
      if (!process.note.empty()) log::info("{}", process.note);
      if (!process.first) return std::nullopt;
    }
  }
  own.arguments = with_dashes(std::move(line.arguments));
  return own;
}

// Whose process this is: the program's own, or one that has loaded the library.
enum class Host { program, library };

// Commands whose work cannot be done inside another program.
void require_own_process(const CommandInfo& info, int ranks) {
  if (info.name == "train") {
    fail(ErrorCode::usage, "train is not a command of the library",
         {{"ballast_train()", "trains in this process, with callbacks"}});
  }
  // It takes rights from the process it runs in.
  if (info.name == "watch") {
    fail(ErrorCode::usage, "watch is not a command of the library",
         {{"ballast watch RUN", "in a process of its own"}});
  }
  if (ranks > 1) {
    fail(ErrorCode::usage, fmt::format("--ranks {} starts processes of the program", ranks),
         {{fmt::format("ballast {} --ranks {}", info.name, ranks), "in a process of its own"}});
  }
}

// The exit code.
int run(std::vector<std::string> arguments, Host host = Host::program) {
  const auto print_page = [](const std::string& text) {
    print(text);
    return 0;
  };
  const std::vector<std::string> whole = arguments;
  if (arguments.empty()) {
    fail(ErrorCode::usage, "no command given", {{"ballast --help", "lists the commands"}});
  }
  if (arguments == std::vector<std::string>{"help", "--markdown"})
    return print_page(flag_reference());
  if (arguments.front() == "help" && arguments.size() > 1) {  // help plan: plan --help
    arguments.erase(arguments.begin());
    arguments.emplace_back("--help");
  }
  const std::string first = arguments.front();
  if (first == "--help" || first == "-h" || first == "help") return print_page(fit_columns(help()));
  if (first == "--version" || first == "-V") {
    if (arguments.back() == "--json") return print_page(build_info_json());
    return print_page(fmt::format("ballast {}\n", version()));
  }
  if (first == "__complete") {
    return print_page(completion_lines({arguments.begin() + 1, arguments.end()}));
  }
  if (begins_pasted_line(first, arguments.size() > 1 ? arguments[1] : "")) {
    fail_without_command(first);
  }
  const CommandInfo& info = find_command(first);
  const auto own = own_arguments(info.name, {arguments.begin() + 1, arguments.end()});
  if (!own) return 0;
  if (host == Host::library) require_own_process(info, own->ranks);
  arguments = own->arguments;
  const auto work = [&](Command& command) {
    if (own->ranks > 1) return launch_ranks({.ranks = own->ranks, .arguments = whole});
    command.run();
    return 0;
  };

  const std::unique_ptr<Command> command = info.make();
  CLI::App app(std::string(info.summary), "ballast " + std::string(info.name));
  command->declare(app);
  if (const auto page = command->help_page(arguments)) return print_page(fit_columns(*page));
  if (!asks_for_help(arguments) && command->takes(arguments)) return work(*command);
  CLI::App& part = part_named(app, arguments);
  const std::string name = &part == &app ? app.get_name() : app.get_name() + " " + part.get_name();
  refuse_unknown_options(part, name, arguments);
  const bool wants_help = std::any_of(arguments.begin(), arguments.end(),
                                      [](const auto& a) { return a == "--help" || a == "-h"; });
  if (wants_help) return print_page(fit_columns(command_help(part)));
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
  app.parse(std::move(arguments));
  return work(*command);
}

int explain(const Error& e) {
  RankSession* const ranks = RankSession::current();
  const bool shown = dynamic_cast<const ShownError*>(&e) != nullptr;
  if (ranks != nullptr) {
    if (const auto code = ranks->explain(e, shown)) return *code;
  }
  std::string who, text;
  if (!shown) {
    const bool ours = e.code() == ErrorCode::internal;
    who = place && place->rank > 0 ? fmt::format("ballast[{}]: ", place->rank) : "ballast: ";
    text = fmt::format("{}{}\n", ours ? "internal error (please report): " : "",
                       without_rule_ids(e.what()));
    for (const std::string& doing : e.trail()) text += fmt::format("  while {}\n", doing);
  }
  if (!e.advice().empty()) text += "what would help:\n";
  int number = 0;
  for (const Advice& a : e.advice()) {
    const std::string first = fmt::format("  {}. ", ++number);
    const std::string line = a.effect.empty() ? a.change : a.change + ": " + a.effect;
    text += wrapped(first, line, text_columns(stderr), first.size()) + "\n";
  }
  // Ranks that fail alike say so once: the first of them.
  if (ranks == nullptr || text.empty() || ranks->first_to_print(text)) {
    std::fputs((who + text).c_str(), stderr);
  }
  return static_cast<int>(e.code());
}

// Failures of the system that nobody explained closer to their cause.
Error system_failure(const std::system_error& e) {
  if (const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&e)) {
    const std::string path = printable(file->path1().string(), 400);
    return Error(ErrorCode::io, fmt::format("{}: {}", path.empty() ? "the current folder" : path,
                                            e.code().message()));
  }
  return Error(ErrorCode::io,
               fmt::format("the system refused something to this process: {}", e.what()));
}

// What is being handled, as an Error, where it is none.
Error current_failure(const std::vector<std::string>& arguments) {
  try {
    throw;
  } catch (const CLI::ParseError& e) {
    return Error(ErrorCode::usage, e.what(),
                 {{fmt::format("ballast {} --help", arguments.at(0)), "lists its options"}});
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  } catch (const std::system_error& e) {
    return system_failure(e);
  } catch (const std::exception& e) {
    return Error(ErrorCode::internal, e.what());
  }
}

}  // namespace

// The only catch of the program.
int run_program(const std::vector<std::string>& arguments) {
  int code = 0;
  try {
    show_progress_as_asked();
    code = run(arguments);
    RankSession::end(true);
    return code;
  } catch (const Error& e) {
    code = explain(e);
  } catch (...) {
    code = explain(current_failure(arguments));
  }
  RankSession::end(false);
  return code;
}

void run_command(const std::vector<std::string>& arguments, std::string& output) {
  const CapturedOutput captured(output);
  try {
    run(arguments, Host::library);
  } catch (const Error&) {
    throw;
  } catch (...) {
    throw current_failure(arguments);
  }
}

}  // namespace ballast
