#include <CLI/CLI.hpp>
#include <array>
#include <memory>
#include <optional>

#include "app/command.h"
#include "app/commands/cache_dataset.h"
#include "app/commands/train_text.h"
#include "app/commands/vae_training.h"
#include "app/help_text.h"
#include "app/live_page.h"
#include "app/output.h"
#include "app/planning.h"
#include "app/planning_heap.h"
#include "app/rank_session.h"
#include "app/training_output.h"
#include "core/log.h"
#include "core/version.h"
#include "dist/host_ranks.h"
#include "io/media_reader.h"
#include "report/secrets.h"
#include "train/config/read_config.h"
#include "train/config/seq2seq_config.h"
#include "train/run/base_merge.h"
#include "train/run/model_choice.h"
#include "train/run/published_model.h"
#include "train/run/run_summary.h"
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
    own_ = split_own_flags(arguments, true);
    command_ = shown_command("ballast train", arguments);
    return true;
  }
  void run() override {
    with_error_line(plan_output(own_), [this] { train_or_cache(); });
  }

 private:
  void train_or_cache();
  bool encode_missing(const train::TrainConfig& config, const train::RunTarget& target);
  fit::PlannedRun planned_or_refused(const train::PreparedRun& run);

  OwnFlags own_;
  std::string command_;
  bool read_media_ = false;  // FFmpeg's libraries stay with the process
};

// The processes that `--ranks` started, as one of them sees them; alone it does nothing.
class JobRanks {
 public:
  JobRanks() {
    if (RankSession::current() == nullptr) return;
    place_ = RankSession::current()->place();
    transport_.emplace(place_->memory_fd, place_->token, place_->rank, place_->ranks);
    start_ = transport_->join("start", place_->rank, place_->ranks);
  }

  bool alone() const { return !place_; }
  bool leads() const { return !place_ || place_->rank == 0; }
  void describe(train::ParallelConfig& to) const {
    if (!place_) return;
    to.ranks = place_->ranks;
    to.rank = place_->rank;
  }
  // What the launcher has taken out of the command.
  std::string flag() const { return place_ ? fmt::format(" --ranks {}", place_->ranks) : ""; }
  // What rank 0 says, once all are here.
  bool together(bool here) {
    if (!place_) return here;
    auto word = static_cast<std::uint8_t>(here);
    start_->broadcast(0, TensorView(reinterpret_cast<std::byte*>(&word), DType::u8, Shape{1, 1}),
                      {});
    return word != 0;
  }
  train::Ranks of_run() {
    if (!place_) return {};
    return {.rank = place_->rank,
            .size = place_->ranks,
            .join = [this](std::string_view group, int rank,
                           int size) { return transport_->join(group, rank, size); },
            .share = [this](const std::string& text) { return text_of_first(text); },
            .control = &RankSession::current()->channel()};
  }
  // Before any weight is read. Plans may differ: ranks need the same work, not the same policy.
  void compare(const train::PreparedRun& run, const std::string& command) {
    if (!place_) return;
    ControlChannel& channel = RankSession::current()->channel();
    channel.set_command(command);
    const train::ParallelConfig& p = run.config.parallel;
    channel.require_same({{"version of Ballast", std::string(version())},
                          {"model", run.model().name},
                          {"model file", train::model_hash(run.checkpoints)},
                          {"teacher's file", train::model_hash(run.teacher)},
                          {"configuration and dataset", run.config_hash},
                          {"samples", fmt::format("{}", run.dataset->samples().size())},
                          {"steps", fmt::format("{}", run.total_steps)},
                          {"columns", fmt::format("{}", p.column_count())}});
  }

 private:
  std::string text_of_first(const std::string& text) {
    std::array<char, 4096> shared{};
    put_text(shared, text);
    start_->broadcast(0,
                      TensorView(reinterpret_cast<std::byte*>(shared.data()), DType::u8,
                                 Shape{1, static_cast<std::int64_t>(shared.size())}),
                      {});
    return std::string(::ballast::text_of(shared));
  }

  std::optional<RankPlace> place_;
  std::optional<HostRanks> transport_;
  std::unique_ptr<Communicator> start_;
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
    add_live_page(own_, run.request);
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
      if (own_.json) {
        print_stopped_early(plan_output(own_));
      } else {
        print(fmt::format("stopped: {}; the same command continues there\n", caching.progress()));
      }
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

void require_one_process(const JobRanks& ranks, std::string_view what) {
  if (ranks.alone()) return;
  fail(ErrorCode::usage, fmt::format("{} with --ranks is not supported yet", what),
       {{"leave out --ranks", "one process does all of it"}});
}

void Train::train_or_cache() {
  JobRanks ranks;
  command_ += ranks.flag();
  if (train::is_seq2seq(own_.rest)) {
    require_one_process(ranks, "training text models");
    return train_text(own_, command_);
  }
  train::TrainConfig config = train::read_config(own_.rest);
  apply(own_, config.memory);
  ranks.describe(config.parallel);
  if (config.cache_only) {
    require_one_process(ranks, "--cache_only");
    return cache_dataset(config, own_);
  }
  if (config.vae) {
    require_one_process(ranks, "training a VAE");
    return train_vae(std::move(config), own_, command_);
  }
  const train::RunTarget target = find_target(own_.target, config.memory);
  if (target.backend.device == Device::cuda) {
    require_one_process(ranks, "training on a GPU");
  }
  if (!ranks.together(!ranks.leads() || encode_missing(config, target))) return;
  train::PreparedRun run = train::prepare_run(std::move(config), target, train::Purpose::train);
  if (read_media_) run.request.other_lines.push_back(kMediaLine);
  if (own_.serve) require_one_process(ranks, "--serve");
  add_live_page(own_, run.request);
  fit::PlannedRun planned = planned_or_refused(run);
  const PlanTitle title = train::title_of(run);
  const PlanView view = view_of(run.request, planned, &run);
  show_plan(title, run.request, planned, view, plan_output(own_));
  auto on_folder = at_run_start(own_, title, run.request, planned, view);
  ranks.compare(run, command_);
  if (ranks.leads()) merge_base_loras(run);
  ranks.together(true);  // all have planned with the memory that is free now
  if (!ranks.leads()) merge_base_loras(run);
  const train::TrainOutcome done = train::train(std::move(run), std::move(planned),
                                                {.command = command_,
                                                 .check_nan = own_.check_nan,
                                                 .remember = ranks.leads(),
                                                 .ranks = ranks.of_run(),
                                                 .on_record = record_printer(plan_output(own_)),
                                                 .on_folder = std::move(on_folder)});
  if (ranks.leads()) print_outcome(done, {{"run", done.folder}}, plan_output(own_));
}

}  // namespace
}  // namespace ballast
