#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace ballast {

// One command of the program. Its file makes it known by itself:
//
//   const RegisterCommand<Inspect> kInspect("inspect", "what a model, LoRA, image or video file
//   is");
class Command {
 public:
  virtual ~Command() = default;

  // Declares arguments and options, which are members of the command. Option names are written with
  // dashes; users may write underscores.
  virtual void declare(CLI::App& app) = 0;
  // The page that arguments such as --help-musubi ask for; nullopt: none of the command's own.
  virtual std::optional<std::string> help_page(const std::vector<std::string>& /*arguments*/) {
    return std::nullopt;
  }
  // A command whose arguments are another tool's to read takes them as they are (with dashes for
  // underscores in names of flags) and says so; nothing is parsed then.
  virtual bool takes(const std::vector<std::string>& /*arguments*/) { return false; }
  // Called with the members filled in. Fails with an Error, like everything below it.
  virtual void run() = 0;
};

struct CommandInfo {
  std::string_view name;
  std::string_view summary;  // one line
  std::unique_ptr<Command> (*make)();
};

std::span<const CommandInfo> commands();  // by name

void register_command(const CommandInfo& info);

template <class C>
struct RegisterCommand {
  RegisterCommand(std::string_view name, std::string_view summary) {
    register_command({name, summary, [] { return std::unique_ptr<Command>(new C); }});
  }
};

}  // namespace ballast
