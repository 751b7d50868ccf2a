#include "train/resumed_checkpoint.h"

#include "core/error.h"
#include "core/log.h"

namespace ballast::train {

namespace {

const Advice& anew() {
  static const Advice advice = {"start without --resume",
                                "a new run begins, this one stays as it is"};
  return advice;
}

}  // namespace

std::optional<FoundCheckpoint> find_resumed(const ResumedRun& run) {
  CheckpointSearch search = find_checkpoint(run.folder, run.names);
  for (const std::string& note : search.notes) log::warn("{}", note);
  if (!search.found) {
    if (!search.notes.empty()) {
      fail(ErrorCode::input, fmt::format("{}: no checkpoint of this run is whole", run.folder),
           {anew()});
    }
    log::warn("{} has no checkpoint yet: the run starts from its beginning", run.folder);
    return std::nullopt;
  }
  check_resumed(*search.found, run);
  return std::move(search.found);
}

void check_resumed(const FoundCheckpoint& found, const ResumedRun& run) {
  if (found.state.model_hash != run.model_hash) {
    fail(ErrorCode::input,
         fmt::format("{} was trained on another model than {}", found.folder, run.model),
         {{"name the model it was trained on", "what was trained belongs to its weights"}, anew()});
  }
  if (found.state.seed != run.seed) {
    fail(ErrorCode::input,
         fmt::format("{} was trained with seed {}, the configuration says {}", found.folder,
                     found.state.seed, run.seed),
         {{fmt::format("seed = {}", found.state.seed), "the run continues as it began"}, anew()});
  }
  // Tensors of one form may mean different things: below 4096 elements 8-bit moments are f32 ones.
  const auto optimizer = found.state.texts.find(kOptimizerText);
  if (!run.optimizer.empty() && optimizer != found.state.texts.end() &&
      optimizer->second != run.optimizer) {
    const bool by_flag = !run.optimizer_flag.empty();
    std::vector<Advice> advice = {
        {fmt::format("{} {}", by_flag ? run.optimizer_flag : "[optimizer] type of",
                     printable(optimizer->second)),
         "the run continues as it began"}};
    if (!by_flag) {
      advice.push_back(
          {"--reset_optimizer", "keeps the weights and begins with fresh optimizer state"});
    }
    advice.push_back(anew());
    fail(ErrorCode::input,
         fmt::format("{} was trained with {}, the configuration says {}", found.folder,
                     printable(optimizer->second), run.optimizer),
         std::move(advice));
  }
  check_checkpoint(found.folder, run.tensors, run.unasked);
}

}  // namespace ballast::train
