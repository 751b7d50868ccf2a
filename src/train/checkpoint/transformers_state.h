#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ballast::train {

inline constexpr const char* kTransformersStateFile = "trainer_state.json";

// What transformers' Trainer keeps of a run beside its model, for people and programs that read
// it: curves, the best evaluation. Resuming reads trainer.json (TrainerState) instead.
struct TransformersState {
  std::int64_t step = 0, max_steps = 0, steps_per_epoch = 1, epochs = 1;
  std::int64_t batch_size = 1;
  std::int64_t logging_steps = 1, save_steps = 0, eval_steps = 0;
  std::optional<double> best_metric = {};
  std::int64_t best_step = -1;       // -1: none
  std::string best_checkpoint = {};  // its folder; "": none was kept
  std::string run_log = {};          // where steps and evaluations of log_history come from
};

// The text of trainer_state.json. Every logging_steps-th step is an entry of log_history, a
// multiple of that where there would be more than some thousands, and every evaluation is one. A
// run log that cannot be read leaves the history empty.
std::string transformers_state_json(const TransformersState& state);

}  // namespace ballast::train
