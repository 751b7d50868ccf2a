#include "train/checkpoint/transformers_state.h"

#include <cmath>
#include <map>

#include "core/error.h"
#include "core/log.h"
#include "io/json_writer.h"
#include "report/run_log.h"

namespace ballast::train {
namespace {

// As Python's json module reads them.
std::string python_number(double v) {
  if (std::isnan(v)) return "NaN";
  if (std::isinf(v)) return v > 0 ? "Infinity" : "-Infinity";
  return fmt::format("{}", v);
}

std::string json_text(const std::string& text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

// Keys in order, and which step they belong to.
class HistoryEntry {
 public:
  void add(const char* key, const std::string& value) {
    text_ += fmt::format("{}\n      \"{}\": {}", text_.empty() ? "" : ",", key, value);
  }
  std::string text() const { return "{" + text_ + "\n    }"; }

 private:
  std::string text_;
};

std::string history_of(const TransformersState& s) {
  RunHistory h;
  try {
    const std::int64_t logged = s.step / std::max<std::int64_t>(1, s.logging_steps);
    h = read_run_log(s.run_log, s.logging_steps * step_stride(logged));
  } catch (const Error& e) {
    log::warn("{}: {} has no history", e.what(), kTransformersStateFile);
  }
  const auto epoch = [&](std::int64_t step) {
    return python_number(static_cast<double>(step) / static_cast<double>(s.steps_per_epoch));
  };
  // By step; of one step the training's entry stands before the evaluation's.
  std::multimap<std::int64_t, std::string> entries;
  for (const StepRecord& r : h.steps) {
    HistoryEntry e;
    e.add("epoch", epoch(r.step));
    e.add("grad_norm", python_number(r.grad_norm));
    e.add("learning_rate", python_number(r.lr));
    e.add("loss", python_number(r.loss));
    e.add("step", std::to_string(r.step));
    entries.emplace(r.step, e.text());
  }
  for (const EvalRecord& r : h.evals) {
    HistoryEntry e;
    e.add("epoch", epoch(r.step));
    e.add("eval_loss", python_number(r.loss));
    for (const ScoreRecord& score : h.scores) {
      if (score.step != r.step) continue;
      e.add(fmt::format("eval_{}", score.name).c_str(), python_number(score.value));
    }
    e.add("step", std::to_string(r.step));
    entries.emplace(r.step, e.text());
  }
  std::string text;
  for (const auto& [step, entry] : entries) {
    if (step > s.step) break;
    text += (text.empty() ? "\n    " : ",\n    ") + entry;
  }
  return "[" + text + "\n  ]";
}

}  // namespace

std::string transformers_state_json(const TransformersState& s) {
  const bool best = s.best_metric && s.best_step >= 0;
  return fmt::format(
      "{{\n  \"best_global_step\": {},\n  \"best_metric\": {},\n  \"best_model_checkpoint\": {},\n"
      "  \"epoch\": {},\n  \"eval_steps\": {},\n  \"global_step\": {},\n"
      "  \"is_hyper_param_search\": false,\n  \"is_local_process_zero\": true,\n"
      "  \"is_world_process_zero\": true,\n  \"log_history\": {},\n  \"logging_steps\": {},\n"
      "  \"max_steps\": {},\n  \"num_input_tokens_seen\": 0,\n  \"num_train_epochs\": {},\n"
      "  \"save_steps\": {},\n  \"stateful_callbacks\": {{}},\n  \"total_flos\": 0.0,\n"
      "  \"train_batch_size\": {},\n  \"trial_name\": null,\n  \"trial_params\": null\n}}\n",
      best ? std::to_string(s.best_step) : "null", best ? python_number(*s.best_metric) : "null",
      best && !s.best_checkpoint.empty() ? json_text(s.best_checkpoint) : "null",
      python_number(static_cast<double>(s.step) / static_cast<double>(s.steps_per_epoch)),
      s.eval_steps, s.step, history_of(s), s.logging_steps, s.max_steps, s.epochs, s.save_steps,
      s.batch_size);
}

}  // namespace ballast::train
