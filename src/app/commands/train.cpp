#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/commands/cache_dataset.h"
#include "app/commands/train_text.h"
#include "app/commands/vae_training.h"
#include "app/help_text.h"
#include "app/output.h"
#include "app/planning.h"
#include "app/planning_heap.h"
#include "app/training_output.h"
#include "core/log.h"
#include "io/media_reader.h"
#include "report/secrets.h"
#include "train/config/read_config.h"
#include "train/config/seq2seq_config.h"
#include "train/run/base_merge.h"
#include "train/run/model_choice.h"
#include "train/run/published_model.h"
#include "train/stop_signal.h"
#include "train/trainer.h"

namespace ballast {
namespace {

// ballast train CONFIG: plans the run, prints the plan, keeps it.
class Train : public Command {
 public:
  void declare(CLI::App&) override {}
  std::optional<std::string> help_page(const std::vector<std::string>& arguments) override {
    return training_help("train", arguments);
  }
  bool takes(const std::vector<std::string>& arguments) override {
    own_ = split_own_flags(arguments);
    command_ = shown_command("ballast train", arguments);
    return true;
  }
  void run() override;

 private:
  bool encode_missing(const train::TrainConfig& config, const train::RunTarget& target);
  fit::PlannedRun planned_or_refused(const train::PreparedRun& run);

  OwnFlags own_;
  std::string command_;
  bool read_media_ = false;  // FFmpeg's libraries stay with the process
};

const RegisterCommand<Train> kTrain("train", "LoRA or full fine-tune inside the memory you have");

const ProcessLine kMediaLine{"media libraries", kMediaLibraries,
                             "FFmpeg's, from their first use on"};

// Encodes what the datasets lack. Everything is planned first, so that a run that does not fit is
// refused before anything is encoded. False: a signal stopped it.
bool Train::encode_missing(const train::TrainConfig& config, const train::RunTarget& target) {
  if (config.require_cache || config.dialect == train::Dialect::flow_matching) return true;
  // What is wrong with the model is said before hours of encoding.
  train::require_downloaded(config.model);
  (void)WeightFiles::open(train::require_model(config).transformer);
  DatasetCaching caching(config, own_, CacheUse::train);
  if (!caching.needed()) return true;
  caching.plan();
  const train::ComingData coming = caching.coming();
  {
    train::PreparedRun run = prepare_run(config, target, train::Purpose::plan, &coming);
    if (caching.reads_media()) run.request.other_lines.push_back(kMediaLine);
    const fit::PlannedRun planned = planned_or_refused(run);
    require_disk_space(train::title_of(run), view_of(run.request, planned, &run),
                       plan_output(own_));
    const bool gpu = target.profile.device == Device::cuda;
    log::info("training fits ({}{} of RAM) and begins when everything is encoded",
              gpu ? fmt::format("{} of GPU memory, ", planned.needed(Tier::device)) : std::string(),
              gpu ? planned.needed(Tier::host)
                  : planned.needed(Tier::device) + planned.needed(Tier::host));
  }
  {
    const train::StopSignal stop("stopping when this is encoded");
    if (!caching.encode([&] { return stop.requested(); })) {
      print(own_.json ? "{\"outcome\": \"stopped\", \"steps\": 0}\n"
                      : fmt::format("stopped: {}; the same command continues there\n",
                                    caching.progress()));
      return false;
    }
  }
  caching.finish();
  read_media_ = caching.reads_media();
  return true;
}

fit::PlannedRun Train::planned_or_refused(const train::PreparedRun& run) {
  fit::NeedsCache known;
  auto outcome = [&] {
    const PlanningHeap heap;
    return fit::find_plan(run.request, known);
  }();
  if (auto* planned = std::get_if<fit::PlannedRun>(&outcome)) return std::move(*planned);
  const auto& refusal = std::get<Refusal>(outcome);
  fail_refused(
      train::title_of(run), run.request, refusal, std::move(known),
      [&] { return possible_changes(run, refusal); }, plan_output(own_), run.notes);
}

void Train::run() {
  if (train::is_seq2seq(own_.rest)) return train_text(own_, command_);
  train::TrainConfig config = train::read_config(own_.rest);
  apply(own_, config.memory);
  if (config.cache_only) return cache_dataset(config, own_);
  if (config.vae) return train_vae(std::move(config), own_, command_);
  const train::RunTarget target = find_target(own_.target, config.memory);
  if (!encode_missing(config, target)) return;
  train::PreparedRun run = train::prepare_run(std::move(config), target, train::Purpose::train);
  if (read_media_) run.request.other_lines.push_back(kMediaLine);
  fit::PlannedRun planned = planned_or_refused(run);
  show_plan(train::title_of(run), run.request, planned, view_of(run.request, planned, &run),
            plan_output(own_));
  merge_base_loras(run);
  const train::TrainOutcome done =
      train::train(std::move(run), std::move(planned),
                   {.command = command_, .check_nan = own_.check_nan, .remember = true});
  print_outcome(done, {{"run", done.folder}}, own_.json);
}

}  // namespace
}  // namespace ballast
