#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/planning.h"
#include "app/training_output.h"
#include "core/log.h"
#include "report/secrets.h"
#include "train/recipes/distill_run.h"

namespace ballast {
namespace {

// ballast distill FLAGS: plans teacher and student together, prints the plan, keeps it.
class Distill : public Command {
 public:
  void declare(CLI::App& app) override {
    app.description(
        app.get_description() +
        "\n\n"
        "ballast distill --teacher_path FOLDER --student_config FILE --data_path FILE [FLAGS]\n\n"
        "WanDistiller's flags, dashes and underscores alike. Prompts are encoded once;\n"
        "the teacher stays where memory allows or streams in, block by block. Ctrl-C\n"
        "finishes the step and saves a checkpoint; --resume continues. --plan shows the\n"
        "plan alone; --json=steps prints a line of JSON for each step.\n");
    app.footer(own_flags_help() + "\n" + train::distill_flags_help());
  }
  bool takes(const std::vector<std::string>& arguments) override {
    own_ = split_own_flags(arguments, true);
    command_ = shown_command("ballast distill", arguments);
    return true;
  }
  void run() override {
    with_error_line(plan_output(own_), [this] { distill(); });
  }

 private:
  void distill();

  OwnFlags own_;
  std::string command_;
};

const RegisterCommand<Distill> kDistill("distill",
                                        "teach a small image student by a Wan transformer");

void Distill::distill() {
  if (!own_.rest.empty() && own_.rest[0].ends_with(".toml")) {
    fail(
        ErrorCode::usage,
        fmt::format("{}: a configuration with a section [distill] is a training run", own_.rest[0]),
        {{"ballast train " + own_.rest[0], "distils as [distill] says"}});
  }
  train::DistillConfig config = train::read_distill_config(own_.rest);
  apply(own_, config.machine);
  const bool plan_only = config.plan_only;
  if (own_.target != "this" && !plan_only) {
    fail(ErrorCode::usage, "--target plans for another machine: it goes with --plan");
  }
  const train::RunTarget target = find_target(own_.target, config.machine);
  train::DistillRun run = train::prepare_distill(std::move(config), target);
  fit::NeedsCache known;
  auto outcome = fit::find_plan(run.request, known);
  const PlanTitle title = title_of(run);
  if (const auto* refusal = std::get_if<Refusal>(&outcome)) {
    print_refusal(title, *refusal, false, run.notes);
    const std::vector<PlannedChange> changes = fit::try_changes(
        run.request, *refusal, possible_changes(run, *refusal), {}, std::move(known));
    log::info("{}", tried_text(run, *refusal, changes));
    if (own_.json) {
      print_json_line(refusal_json(title, *refusal, changes), plan_output(own_).kind("plan"));
    }
    fail_with_advice(title, *refusal, advice_of(changes, title.shared_ram));
  }
  auto& planned = std::get<fit::PlannedRun>(outcome);
  show_plan(title, run.request, planned, view_of(run, planned), plan_output(own_));
  if (plan_only) return;
  const std::string output = run.config.output_dir;
  const train::TrainOutcome done = train::distill(std::move(run), std::move(planned),
                                                  {.command = command_,
                                                   .check_nan = own_.check_nan,
                                                   .remember = true,
                                                   .on_record = record_printer(plan_output(own_))});
  print_outcome(done,
                {{"student", done.stopped ? "not saved yet: --resume continues" : output},
                 {"run", done.folder}},
                plan_output(own_));
}

}  // namespace
}  // namespace ballast
