#include "train/checkpoint/resumed_checkpoint.h"

#include "core/error.h"
#include "core/log.h"

namespace ballast::train {

namespace {

const Advice& anew() {
  static const Advice advice = {"start without --resume",
                                "a new run begins, this one stays as it is"};
  return advice;
}

// Why the checkpoint cannot be trusted, having read all of it.
std::optional<std::string> damage_note(const FoundCheckpoint& found, const CheckpointNames& names) {
  try {
    verify_checkpoint(found.folder, Verify::checksums, names);
    return std::nullopt;
  } catch (const Error& e) {
    return skipped_note(found.folder, e);
  }
}

}  // namespace

std::optional<FoundCheckpoint> find_resumed(const ResumedRun& run) {
  std::int64_t before = run.before.value_or(std::numeric_limits<std::int64_t>::max());
  bool skipped = false;
  const auto warn = [&](const std::string& note) {
    log::warn("{}", note);
    skipped = true;
  };
  for (;;) {
    CheckpointSearch search = find_checkpoint(run.folder, run.names, Verify::sizes, before);
    for (const std::string& note : search.notes) warn(note);
    if (!search.found) break;
    try {
      check_resumed(*search.found, run);
      return std::move(search.found);
    } catch (const Error&) {
      // It is of another run, or its header is damaged: then an older one may do.
      const auto damage = damage_note(*search.found, run.names);
      if (!damage) throw;
      warn(*damage);
      before = search.found->state.step;
    }
  }
  if (run.before) return std::nullopt;
  if (skipped) {
    fail(ErrorCode::input, fmt::format("{}: no checkpoint of this run is whole", run.folder),
         {anew()});
  }
  log::warn("{} has no checkpoint yet: the run starts from its beginning", run.folder);
  return std::nullopt;
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
  try {
    check_checkpoint(found.folder, run.tensors, run.unasked);
  } catch (const Error&) {
    verify_checkpoint(found.folder, Verify::checksums, run.names);  // damage is told as damage
    throw;
  }
}

}  // namespace ballast::train
