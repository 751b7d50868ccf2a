#include <cmath>
#include <filesystem>

#include "core/error.h"
#include "core/log.h"
#include "core/path_kind.h"
#include "io/atomic_file.h"
#include "train/run/parallel_resume.h"
#include "train/training_loop.h"

namespace ballast::train {

std::optional<FoundCheckpoint> TrainingLoop::find_resumed(std::optional<std::int64_t> before) {
  const TrainConfig& c = run_.config;
  return task_->find_checkpoint(
      {.folder = folder_.path(),
       .model = run_.model,
       .model_hash = state_.model_hash,
       .seed = c.seed,
       .optimizer = c.reset_optimizer ? "" : std::string(name_of(c.optimizer.kind)),
       .optimizer_flag = run_.optimizer_flag,
       .tensors = task_->loaded_tensors(*runner_, c.reset_optimizer),
       .unasked = c.reset_optimizer ? Unasked::ignore : Unasked::refuse,
       .names = names_,
       .before = before});
}

void TrainingLoop::resume() {
  if (!resumed_) return;
  const TrainConfig& c = run_.config;
  const auto load = [&](const FoundCheckpoint& from) {
    load_checkpoint(from.folder, task_->loaded_tensors(*runner_, c.reset_optimizer),
                    c.reset_optimizer ? Unasked::ignore : Unasked::refuse);
  };
  resumed_ = load_or_older(std::move(*resumed_), load,
                           [&](std::int64_t before) { return find_resumed(before); });
  const std::string config = state_.config_hash, plan = state_.plan_hash;
  state_ = resumed_->state;
  if (run_.in_output_dir && state_.config_hash != config) {
    log::warn("{}: batch size, schedule or the like were others: the run continues with today's",
              resumed_->folder);
  }
  state_.config_hash = config;
  state_.plan_hash = plan;
  state_.world_size = options_.ranks.size;
  runner_->run("after_restore");
  task_->take_state(state_, c.reset_optimizer);
  epoch_loss_ = state_.numbers["epoch_loss"];
  epoch_steps_ = state_.counts["epoch_steps"];
  loss_ = state_.numbers["loss"];
  nan_guard_ =
      NanGuard(c.on_nan, 10, state_.counts["nan_consecutive"], state_.counts["nan_skipped"]);
  if (c.reset_dataloader) state_.batches = 0;
  task_->resumed(state_);
  checkpointed_step_ = state_.step;
  log::info("resumed from {} at step {}", resumed_->folder, state_.step);
}

// The files of the configuration: what a run was stays readable when they are changed.
void TrainingLoop::keep_configs() {
  const TrainConfig& c = run_.config;
  if (!c.source.empty()) folder_.copy_config(c.source);
  std::vector<DatasetRef> datasets = c.eval_datasets;
  datasets.insert(datasets.begin(), c.dataset);
  for (const DatasetRef& d : datasets) {
    if (is_file(d.config)) folder_.copy_config(d.config);
  }
}

// Every tensor on the device it lies on; a NaN is looked for when there is one.
void TrainingLoop::check_values() {
  if (std::isfinite(task_->value_norm(*runner_))) return;
  const auto where = find_non_finite(task_->saved_tensors(*runner_));
  if (where) fail_non_finite(*where);
}

void TrainingLoop::fail_non_finite(const NonFinite& where) const {
  const bool kept = checkpointed_step_ >= 0;
  const std::string last = kept ? fmt::format("the last good checkpoint is {}/{}",
                                              checkpoints_folder(folder_.path(), names_),
                                              checkpoint_name(checkpointed_step_, names_))
                                : std::string("there is no checkpoint yet");
  fail(ErrorCode::input,
       fmt::format("after {} steps the trained tensor {} holds {} at element {}: it is not saved, "
                   "and {}",
                   state_.step, where.tensor, where.value, where.element, last),
       {{kept ? "resume with a lower learning rate" : "start again with a lower learning rate",
         kept ? "training continues from that checkpoint"
              : "the numbers of this run grew too large"}});
}

void TrainingLoop::save(SavePoint at) {
  if (saved_step_ == state_.step || !leads()) return;
  const TrainConfig& c = run_.config;
  if (!c.output_name.empty()) return save_file(model_file_name(c.output_name, at));
  saving([&] {
    AtomicFolder to = folder_.saved_model(at);
    task_->save(*runner_, {.folder = to.temporary_path(), .file_name = task_->file_name()},
                state_.step);
    if (!run_.config.source.empty()) {
      const auto name = std::filesystem::path(run_.config.source).filename().string();
      // Models are given to others: without keys of web services
      write_text_file(to.temporary_path() + "/" + name, run_.info.config);
    }
    to.commit();
    return std::vector{to.path()};
  });
}

void TrainingLoop::save_file(const std::string& name) {
  saving([&] {
    return task_->save(*runner_, {.folder = run_.config.output_dir, .file_name = name},
                       state_.step);
  });
}

template <class Write>
void TrainingLoop::saving(Write&& write) {
  phase(Phase::save);
  const Stopwatch begin;
  check_values();
  const std::vector<std::string> paths =
      while_doing(fmt::format("saving the model after step {}", state_.step), write);
  saved_step_ = state_.step;
  for (const std::string& p : paths) event("save", p);
  extra_seconds_ += begin.seconds();
}

void TrainingLoop::save_checkpoint_now(const char* why) {
  if (checkpointed_step_ == state_.step || !leads()) return;
  phase(Phase::save);
  const Stopwatch begin;
  state_.wall_seconds += running_.lap();
  task_->put_state(state_);
  state_.counts["epoch_steps"] = epoch_steps_;
  state_.counts["nan_consecutive"] = nan_guard_.consecutive();
  state_.counts["nan_skipped"] = nan_guard_.skipped();
  state_.numbers["epoch_loss"] = epoch_loss_;
  state_.numbers["loss"] = loss_;
  state_.texts[kOptimizerText] = name_of(run_.config.optimizer.kind);
  put_parallel(run_.config, state_);
  const std::vector<SavedTensor> tensors = watched(
      task_->saved_tensors(*runner_), [this](const NonFinite& where) { fail_non_finite(where); });
  const std::string path =
      save_checkpoint(folder_.path(), state_, tensors, names_, [&](const AtomicFolder& to) {
        task_->add_files(folder_.path(), to.temporary_path(), state_);
      });
  rotate_checkpoints(folder_.path(), run_.config.keep_checkpoints, names_, task_->protected_step());
  checkpointed_step_ = state_.step;
  event("checkpoint", fmt::format("{} ({})", path, why));
  extra_seconds_ += begin.seconds();
}

std::string TrainingLoop::finish(bool stopped) {
  if (!leads()) return "";
  const TrainConfig& c = run_.config;
  save_checkpoint_now(stopped ? "stopped" : "finished");
  if (!stopped) {
    const bool by_steps = c.max_steps && *c.max_steps <= state_.step;
    task_->choose_final_model(*runner_, folder_.path());
    if (run_.in_output_dir) {
      save_file(task_->file_name());
      task_->add_files(folder_.path(), folder_.path(), state_);
    } else if (!c.output_name.empty()) {
      save_file(last_model_file_name(c.output_name));
    } else {
      save(by_steps ? SavePoint{SavePoint::Kind::step, state_.step}
                    : SavePoint{SavePoint::Kind::epoch, state_.epoch - 1});
    }
  }
  monitor_->sample(arenas(), Counting::exact);
  memory_line();
  event(stopped ? "stopped" : "finish",
        fmt::format("{} steps, loss {:.5g}{}", state_.step, loss_, speed_text()));
  const std::string report = records_->finish(state_.step);
  phase(stopped ? Phase::stopped : Phase::finished);
  if (stopped && signal_ && signal_->requested()) {
    flight_->phase(Phase::stopped, fmt::format("It was asked to stop by {}.", signal_->name()));
  }
  notify(WebhookMessage::Kind::stop,
         fmt::format("{} after {} steps, loss {:.5f}{}", stopped ? "stopped" : "finished",
                     state_.step, loss_, speed_text()));
  return report;
}

}  // namespace ballast::train
