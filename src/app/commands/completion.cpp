#include "app/completion.h"

#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/output.h"
#include "app/planning.h"

namespace ballast {
namespace {

// ballast completion SHELL: the script by which a shell asks this program.
class Completion : public Command {
 public:
  void declare(CLI::App& app) override {
    app.add_option("shell", shell_, "bash, zsh or fish")->required();
    app.footer(
        "To use it in this shell:\n"
        "  eval \"$(ballast completion bash)\"     in ~/.bashrc\n"
        "  eval \"$(ballast completion zsh)\"      in ~/.zshrc, behind compinit\n"
        "  ballast completion fish | source      in ~/.config/fish/config.fish\n"
        "The packages install all three.");
  }
  void run() override {
    const char* const script = completion_script(shell_);
    if (script == nullptr) fail_unknown("SHELL", shell_, {"bash", "zsh", "fish"});
    print(script);
  }

 private:
  std::string shell_;
};

const RegisterCommand<Completion> kCompletion("completion", "lets your shell complete options");

}  // namespace
}  // namespace ballast
