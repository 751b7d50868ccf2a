#include <CLI/CLI.hpp>

#include "app/cache_dataset.h"
#include "app/command.h"
#include "app/planning.h"
#include "app/planning_heap.h"
#include "app/train_text.h"
#include "app/training_output.h"
#include "app/vae_training.h"
#include "core/log.h"
#include "report/secrets.h"
#include "train/base_merge.h"
#include "train/read_config.h"
#include "train/seq2seq_config.h"
#include "train/trainer.h"

namespace ballast {
namespace {

// ballast train CONFIG: plans the run, prints the plan, keeps it.
class Train : public Command {
 public:
  void declare(CLI::App& app) override {
    app.description(
        app.get_description() +
        "\n\n"
        "ballast train CONFIG.toml [FLAGS]         a diffusion-pipe or musubi-tuner file\n"
        "ballast train --dit FILE --dataset_config FILE [FLAGS]    musubi-tuner's flags\n"
        "ballast train --dataset_path FOLDER [FLAGS]               a flow-matching run\n"
        "ballast train --model_name_or_path FOLDER --train_file FILE --output_dir FOLDER   a T5 "
        "run\n\n"
        "Prints the plan, keeps to it, and writes runs to output_dir. Ctrl-C finishes the step\n"
        "and saves; --resume continues. After a crash `ballast doctor` says what happened.\n"
        "`ballast plan` with the same arguments shows the plan alone.\n");
    app.footer(own_flags_help() + "\n" + train::config_flags_help() + "\n" +
               train::seq2seq_flags_help());
  }
  bool takes(const std::vector<std::string>& arguments) override {
    for (const std::string& a : arguments) {
      if (a == "--help" || a == "-h") return false;
    }
    own_ = split_own_flags(arguments);
    command_ = shown_command("ballast train", arguments);
    return true;
  }
  void run() override;

 private:
  OwnFlags own_;
  std::string command_;
};

const RegisterCommand<Train> kTrain("train", "LoRA or full fine-tune inside the memory you have");

void Train::run() {
  if (train::is_seq2seq(own_.rest)) return train_text(own_, command_);
  train::TrainConfig config = train::read_config(own_.rest);
  if (config.cache_only) return cache_dataset(config, own_);
  if (config.vae) return train_vae(std::move(config), own_, command_);
  const train::RunTarget target =
      find_target(own_.target, compute_options(config.memory, own_.threads));
  train::PreparedRun run = train::prepare_run(std::move(config), target, train::Purpose::train);
  wan::KnownNeeds known;
  auto outcome = [&] {
    const PlanningHeap heap;
    return fit(run.request, known);
  }();
  const PlanTitle title = train::title_of(run);
  if (const auto* refusal = std::get_if<Refusal>(&outcome)) {
    fail_refused(
        title, run.request, *refusal, std::move(known),
        [&] { return possible_changes(run, *refusal); }, own_.json, run.notes);
  }
  auto& planned = std::get<wan::PlannedRun>(outcome);
  show_plan(title, run.request, planned, {own_.json, own_.details}, &run);
  merge_base_loras(run);
  const train::TrainOutcome done =
      train::train(std::move(run), std::move(planned),
                   {.command = command_, .check_nan = own_.check_nan, .remember = true});
  print_outcome(done, {{"run", done.folder}}, own_.json);
}

}  // namespace
}  // namespace ballast
