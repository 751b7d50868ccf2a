// Messages of a run to a webhook and to other ranks.

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/log.h"
#include "core/progress.h"
#include "report/service_key.h"
#include "train/training_loop.h"

namespace ballast::train {

void TrainingLoop::open_webhook() {
  if (const auto key = find_service_key("WANDB_API_KEY")) {
    log::info(
        "WANDB_API_KEY ({}) is ignored: wandb is not supported; {} gets a run log, TensorBoard "
        "files and a report",
        key->from, folder_.path());
  }
  if (!run_.config.webhook) return;
  webhook_ =
      run_.webhook.empty() ? Webhook::from_environment() : std::make_unique<Webhook>(run_.webhook);
  reported_ = {};
}

std::string TrainingLoop::speed_text() const {
  if (step_seconds_ <= 0) return "";
  return fmt::format(", {:.3g} samples/s, {:.3g} batches/s",
                     static_cast<double>(samples_done_) / step_seconds_,
                     static_cast<double>(batches_done_) / step_seconds_);
}

void TrainingLoop::report_progress(const StepRecord& record) {
  const double minutes = run_.config.webhook_minutes;
  if (!webhook_ || minutes <= 0 || reported_.seconds() < 60 * minutes) return;
  if (record.step >= run_.total_steps) return;  // the last message follows
  reported_ = {};
  std::string text =
      fmt::format("step {} of {}, epoch {}, loss {:.4g} (mean {:.4g}), {:.3g} s per step{}",
                  record.step, run_.total_steps, record.epoch, record.loss,
                  progress_->smoothed_loss(), progress_->seconds_per_step(), speed_text());
  if (const auto left = progress_->seconds_left()) {
    text += fmt::format(", {} left",
                        to_string(std::chrono::seconds(std::llround(std::min(*left, 1e9)))));
  }
  WebhookMessage message = {.kind = WebhookMessage::Kind::progress,
                            .title = run_.info.title,
                            .text = std::move(text),
                            .fields = {}};
  if (on_gpu()) {
    message.fields.emplace_back(
        "GPU memory",
        fmt::format("{} of {} planned", record.measured.device, record.planned.device));
  }
  message.fields.emplace_back(
      "RAM", fmt::format("{} of {} planned", record.measured.ram, record.planned.ram));
  webhook_->send(std::move(message));
}

void TrainingLoop::tell_state(const FlightState& state) {
  if (options_.ranks.control == nullptr) return;
  ControlHeartbeat& told = control_state_;
  put_text(told.phase, name_of(state.phase));
  told.step = state.step;
  told.total_steps = run_.total_steps;
  told.checkpoint = checkpointed_step_;
  std::size_t line = 0;
  MemoryNumbers::each(planned_, [&](const char* name, Bytes planned) {
    put_text(told.memory.at(line).name, display_name_of(name, on_gpu()));
    told.memory.at(line++).planned = planned.count;
  });
  line = 0;
  MemoryNumbers::each(run_.info.allowed, [&](const char*, Bytes allowed) {
    told.memory.at(line++).allowed = allowed.count;
  });
  line = 0;
  MemoryNumbers::each(state.measured, [&](const char*, Bytes measured) {
    told.memory.at(line++).measured = measured.count;
  });
  options_.ranks.control->set_state(told);
}

void TrainingLoop::require_same_resume() {
  if (!run_.config.resume) return;
  options_.ranks.require_same(
      {{"checkpoint to resume from",
        resumed_ ? fmt::format("step {}", resumed_->state.step) : std::string("none")}});
}

void TrainingLoop::notify(WebhookMessage::Kind kind, std::string text) {
  if (!webhook_) return;
  webhook_->send({.kind = kind, .title = run_.info.title, .text = std::move(text), .fields = {}});
}

}  // namespace ballast::train
