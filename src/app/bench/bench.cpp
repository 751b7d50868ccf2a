#include <CLI/CLI.hpp>

#include "app/bench/bench_distill.h"
#include "app/bench/bench_kernels.h"
#include "app/bench/bench_machine.h"
#include "app/bench/bench_t5.h"
#include "app/bench/bench_text.h"
#include "app/bench/bench_vae.h"
#include "app/bench/bench_wan.h"
#include "app/command.h"

namespace ballast {
namespace {

class Bench : public Command {
 public:
  void declare(CLI::App& app) override {
    app.require_subcommand(1);
    distill_.declare(
        *app.add_subcommand("distill", "a step of teacher and student, on random weights")
             ->callback([this] { run_ = [this] { distill_.run(); }; }));
    kernels_.declare(
        *app.add_subcommand("kernels", "the GPU's memory-bound operations beside a copy")
             ->callback([this] { run_ = [this] { kernels_.run(); }; }));
    machine_.declare(
        *app.add_subcommand("machine", "the rates that plans predict time from")->callback([this] {
          run_ = [this] { machine_.run(); };
        }));
    wan_.declare(*app.add_subcommand("wan", "a step of a Wan transformer, on random weights")
                      ->callback([this] { run_ = [this] { wan_.run(); }; }));
    vae_.declare(*app.add_subcommand("vae", "a clip through half a Wan VAE, on random weights")
                      ->callback([this] { run_ = [this] { vae_.run(); }; }));
    text_.declare(*app.add_subcommand("text", "prompts through a text encoder of random weights")
                       ->callback([this] { run_ = [this] { text_.run(); }; }));
    t5_.declare(*app.add_subcommand("t5", "a training step of FLAN-T5's shapes, on random weights")
                     ->callback([this] { run_ = [this] { t5_.run(); }; }));
  }
  void run() override { run_(); }

 private:
  std::function<void()> run_;
  BenchDistill distill_;
  BenchKernels kernels_;
  BenchMachine machine_;
  BenchWan wan_;
  BenchVae vae_;
  BenchText text_;
  BenchT5 t5_;
};

const RegisterCommand<Bench> kBench("bench", "measure this machine");

}  // namespace
}  // namespace ballast
