#include <CLI/CLI.hpp>

#include "app/bench/benches.h"

namespace ballast {
namespace {

class Bench : public Command {
 public:
  void declare(CLI::App& app) override {
    app.require_subcommand(1);
    const auto add = [&](const char* name, const char* summary, std::unique_ptr<Command> part) {
      CLI::App* sub = app.add_subcommand(name, summary);
      part->declare(*sub);
      sub->callback([this, chosen = part.get()] { chosen_ = chosen; });
      parts_.push_back(std::move(part));
    };
    add("distill", "a step of teacher and student, on random weights", bench_distill());
    add("kernels", "the GPU's memory-bound operations beside a copy", bench_kernels());
    add("machine", "the rates that plans predict time from", bench_machine());
    add("wan", "a step of a Wan transformer, on random weights", bench_wan());
    add("vae", "a clip through half a Wan VAE, on random weights", bench_vae());
    add("text", "prompts through a text encoder of random weights", bench_text());
    add("t5", "a training step of FLAN-T5's shapes, on random weights", bench_t5());
  }
  void run() override { chosen_->run(); }

 private:
  std::vector<std::unique_ptr<Command>> parts_;
  Command* chosen_ = nullptr;
};

const RegisterCommand<Bench> kBench("bench", "measure this machine");

}  // namespace
}  // namespace ballast
