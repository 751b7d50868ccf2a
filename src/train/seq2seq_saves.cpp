#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "train/resumed_checkpoint.h"
#include "train/runner_tensors.h"
#include "train/seq2seq_loop.h"
#include "train/transformers_folder.h"

namespace ballast::train {
namespace {

constexpr const char* kTexts = "train_texts";  // in TrainerState::texts

}  // namespace

// Values are the model's file, as transformers reads it; the rest is state.
std::vector<LoadedTensor> Seq2SeqLoop::loaded() const {
  std::vector<LoadedTensor> all = loaded_tensors(model_->io().trained, *runner_, false);
  std::size_t i = 0;
  for (const UpdatedTensor& t : model_->io().trained) {
    all[i].file = kModelFile;
    i += 1 + t.states.size();
  }
  return all;
}

void Seq2SeqLoop::find_checkpoint_to_resume() {
  if (run_.resume_from.empty()) return;
  const Seq2SeqConfig& c = run_.config;
  const CheckpointNames names = transformers_names();
  const std::vector<LoadedTensor> tensors = loaded();
  ResumedRun wanted = {.folder = folder_.path(),
                       .model = run_.checkpoints[0].path(),
                       .model_hash = state_.model_hash,
                       .seed = c.seed,
                       .optimizer = std::string(name_of(c.optimizer.kind)),
                       .tensors = tensors,
                       .unasked = Unasked::refuse,
                       .names = names};
  const bool any_model = c.model.empty();  // it is the checkpoint's own
  if (c.resume->empty() && !any_model) {
    resumed_ = find_resumed(wanted);
    return;
  }
  resumed_ = {run_.resume_from, verify_checkpoint(run_.resume_from, Verify::checksums, names)};
  if (any_model) wanted.model_hash = resumed_->state.model_hash;
  check_resumed(*resumed_, wanted);
}

void Seq2SeqLoop::resume() {
  if (!resumed_) return;
  const std::string config = state_.config_hash, plan = state_.plan_hash;
  state_ = resumed_->state;
  if (state_.config_hash != config) {
    log::warn(
        "{}: batch size, schedule or the like were others: the run goes "
        "on with today's",
        resumed_->folder);
  }
  state_.config_hash = config;
  state_.plan_hash = plan;
  if (state_.texts[kTexts] != run_.train->cache.key()) {
    log::warn("{}: the texts were others: the epoch goes on with today's", resumed_->folder);
    state_.batches = std::min(state_.batches, run_.steps_per_epoch - 1);
  }
  load_checkpoint(resumed_->folder, loaded());
  runner_->run("after_restore");
  updates_ = state_.counts["updates"];
  epoch_loss_ = state_.numbers["epoch_loss"];
  epoch_steps_ = state_.counts["epoch_steps"];
  loss_ = state_.numbers["loss"];
  early_stop_.best = state_.numbers["best_loss"];
  early_stop_.checks = state_.counts["loss_checks"];
  early_stop_.worse = state_.counts["loss_worse"];
  nan_guard_ = NanGuard(run_.config.on_nan, 10, state_.counts["nan_consecutive"],
                        state_.counts["nan_skipped"]);
  checkpointed_step_ = state_.step;
  log::info("resumed from {} at step {}", resumed_->folder, state_.step);
}

void Seq2SeqLoop::save_checkpoint_now(const char* why) {
  if (checkpointed_step_ == state_.step) return;
  phase(Phase::save);
  const double begin = now_seconds();
  state_.wall_seconds += begin - std::exchange(began_, begin);
  state_.counts["updates"] = updates_;
  state_.counts["epoch_steps"] = epoch_steps_;
  state_.counts["loss_checks"] = early_stop_.checks;
  state_.counts["loss_worse"] = early_stop_.worse;
  state_.counts["nan_consecutive"] = nan_guard_.consecutive();
  state_.counts["nan_skipped"] = nan_guard_.skipped();
  state_.numbers["epoch_loss"] = epoch_loss_;
  state_.numbers["loss"] = loss_;
  state_.numbers["best_loss"] = early_stop_.best;
  state_.texts[kOptimizerText] = name_of(run_.config.optimizer.kind);
  state_.texts[kTexts] = run_.train->cache.key();
  std::vector<SavedTensor> tensors = saved_tensors(model_->io().trained, *runner_);
  std::size_t i = 0;
  for (const UpdatedTensor& t : model_->io().trained) {
    tensors[i].file = kModelFile;
    i += 1 + t.states.size();
  }
  const std::string path = save_checkpoint(
      folder_.path(), state_, tensors, transformers_names(), [&](const AtomicFolder& to) {
        write_model_files(folder_.path(), "", run_.model(), to.temporary_path());
      });
  rotate_checkpoints(folder_.path(), run_.config.keep_checkpoints, transformers_names());
  checkpointed_step_ = state_.step;
  event("checkpoint", fmt::format("{} ({})", path, why));
  extra_seconds_ += now_seconds() - begin;
}

void Seq2SeqLoop::save_model() {
  phase(Phase::save);
  const DType dtype = run_.config.save_dtype.value_or(
      run_.request.job.format == WeightFormat::bf16 ? DType::bf16 : DType::f32);
  std::vector<SavedTensor> tensors;
  for (const UpdatedTensor& t : model_->io().trained) {
    const Buffer value = value_to_save(t);
    tensors.push_back({.name = t.name,
                       .dtype = dtype,
                       .shape = runner_->view(value).shape,
                       .source = converted_source(*runner_, value, dtype)});
  }
  while_doing(fmt::format("saving the model after step {}", state_.step),
              [&] { write_model_weights(folder_.path(), tensors); });
  event("save", folder_.path());
}

std::string Seq2SeqLoop::finish(bool stopped) {
  save_checkpoint_now(stopped ? "stopped" : "finished");
  if (!stopped) save_model();
  monitor_->sample(arenas(), Counting::exact);
  memory_line();
  event(stopped ? "stopped" : "finish", fmt::format("{} steps, loss {:.5g}", state_.step, loss_));
  const std::string report = records_->finish(state_.step);
  phase(stopped ? Phase::stopped : Phase::finished);
  tell(WebhookMessage::Kind::stop,
       fmt::format("{} after {} steps, loss {:.5f}", stopped ? "stopped" : "finished", state_.step,
                   loss_));
  return report;
}

}  // namespace ballast::train
