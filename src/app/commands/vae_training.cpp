#include "app/commands/vae_training.h"

#include "app/commands/cache_dataset.h"
#include "app/live_page.h"
#include "app/output.h"
#include "app/plan_pages.h"
#include "app/training_output.h"
#include "core/error.h"
#include "core/log.h"
#include "data/dataset_encoding.h"
#include "io/media_reader.h"
#include "train/recipes/vae_run.h"

namespace ballast {
namespace {

fit::PlannedRun planned_or_refused(const train::PreparedVae& run, const OwnFlags& own,
                                   bool show = true) {
  auto outcome = fit::find_plan(run.request);
  const PlanTitle title = train::title_of(run);
  if (auto* planned = std::get_if<fit::PlannedRun>(&outcome)) {
    const PlanView view = train::view_of(run, *planned);
    require_disk_space(title, view, plan_output(own));
    if (show) print_plan(title, view, plan_output(own));
    save_plan_page(plan_output(own), title, run.request, *planned, view);
    return std::move(*planned);
  }
  const auto& refusal = std::get<Refusal>(outcome);
  fail_refused(
      title, run.request, refusal, {}, [&] { return possible_changes(run, refusal); },
      plan_output(own), run.notes);
}

train::PreparedVae prepared(train::TrainConfig config, const OwnFlags& own,
                            train::Purpose purpose) {
  apply(own, config.memory);
  const train::RunTarget target = find_target(own.target, config.memory);
  train::PreparedVae run = train::prepare_vae(std::move(config), target, purpose);
  add_live_page(own, run.request);
  return run;
}

}  // namespace

void plan_vae_training(train::TrainConfig config, const OwnFlags& own) {
  planned_or_refused(prepared(std::move(config), own, train::Purpose::plan), own);
}

void train_vae(train::TrainConfig config, const OwnFlags& own, const std::string& command) {
  bool read_media = false;
  if (!config.require_cache) {
    const train::PreparedVae first = prepared(config, own, train::Purpose::plan);
    if (!first.dataset->fully_cached()) {
      planned_or_refused(first, own, false);
      cache_clips(config, own);
      read_media = true;
    }
  }
  train::PreparedVae run = prepared(std::move(config), own, train::Purpose::train);
  if (read_media) {
    run.request.other_lines.push_back(
        {"media libraries", kMediaLibraries, "FFmpeg's, from their first use on"});
  }
  fit::PlannedRun planned = planned_or_refused(run, own);
  auto on_folder =
      at_run_start(own, train::title_of(run), run.request, planned, train::view_of(run, planned));
  const train::TrainOutcome done = train::train(std::move(run), std::move(planned),
                                                {.command = command,
                                                 .check_nan = own.check_nan,
                                                 .remember = true,
                                                 .on_record = record_printer(plan_output(own)),
                                                 .on_folder = std::move(on_folder)});
  print_outcome(done, {{"run", done.folder}}, plan_output(own));
}

void cache_clips(const train::TrainConfig& config, const OwnFlags& own) {
  data::EncodingSearch search;
  search.regenerate = config.regenerate_cache;
  search.request = {.path = config.dataset.config,
                    .named = config.dataset.named,
                    .needs = train::vae_needs(train::vae_network(*config.vae).pixels_per_latent()),
                    .cache_name = train::kVaeCache,
                    .clip_mode = config.video_clip_mode,
                    .allow_many_resolutions = config.allow_many_resolutions,
                    .trust_cache = config.trust_cache};
  const data::EncodingWork work = data::find_encoding_work(search);
  for (const std::string& note : config.notes) log::info("{}", note);
  for (const std::string& note : work.notes) log::info("{}", note);
  data::EncodingReport report;
  report.skipped = work.skipped;
  data::encode_media(work, {.request = search.request, .regenerate = search.regenerate}, {},
                     data::read_media(), report);
  if (own.json) {
    print_json_line(fmt::format("{{\"clips\":{{\"cached\":{},\"there\":{}}},\"skipped\":{}}}",
                                report.clips, report.clips_there, report.skipped.size()),
                    plan_output(own).kind("cache"));
    return require_clips(report);
  }
  print(fmt::format("{} clips cached, {} already cached\n", report.clips, report.clips_there));
  if (report.skipped.empty()) return;
  print(fmt::format("{} files skipped:\n", report.skipped.size()));
  for (const data::SkippedFile& s : report.skipped) {
    print(fmt::format("  {}: {}\n", printable(s.path), printable(without_rule_ids(s.reason), 400)));
  }
  require_clips(report);
}

}  // namespace ballast
