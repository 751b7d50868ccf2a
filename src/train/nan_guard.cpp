#include "train/nan_guard.h"

#include <algorithm>

#include "core/error.h"

namespace ballast::train {
namespace {

std::string describe(const BadStep& s) {
  constexpr std::size_t kMaxNamed = 8;
  std::string text =
      fmt::format("step {}: loss {}, gradient norm {}, learning rate {}; samples: ", s.step, s.loss,
                  s.gradient_norm, s.learning_rate);
  const std::size_t named = std::min(s.samples.size(), kMaxNamed);
  for (std::size_t i = 0; i < named; ++i) {
    text += (i == 0 ? "" : ", ") + printable(s.samples[i]);
  }
  if (named == 0) text += "none";
  if (named < s.samples.size()) text += fmt::format(" and {} more", s.samples.size() - named);
  return text;
}

}  // namespace

std::string NanGuard::skip(const BadStep& step) {
  check(bad(step.loss, step.gradient_norm), "step {} is not a bad one", step.step);
  ++consecutive_;
  // Every step before this one was skipped: the learning rate is not the cause.
  const bool before_any_update = !updated_ && step.step - 1 <= skipped_;
  if (before_any_update && (policy_ == OnNan::stop || consecutive_ >= limit_)) {
    fail(ErrorCode::input,
         fmt::format("{}: not a number to train with, before any weight was changed: it comes from "
                     "the model's files or from the samples",
                     describe(step)),
         {{"look for NaN in the files of the model", "a damaged or badly converted one has them"},
          {"look at the samples named here", "another dataset shows whether it is they"}});
  }
  if (policy_ == OnNan::stop) {
    fail(ErrorCode::input,
         fmt::format("{}: not a number to train with, and the weights were not changed",
                     describe(step)),
         {{"lower the learning rate, and look at the samples named here", "then resume"},
          {"on_nan = \"skip\"", "leaves such steps out and continues"}});
  }
  if (consecutive_ >= limit_) {
    fail(ErrorCode::input,
         fmt::format("{}: such step number {} in a row, skipping more of them will not help",
                     describe(step), consecutive_),
         {{"resume from an earlier checkpoint with a lower learning rate",
           "the weights themselves are probably beyond repair"}});
  }
  ++skipped_;
  return fmt::format("{}: skipped, weights unchanged ({} in a row, {} in this run)", describe(step),
                     consecutive_, skipped_);
}

}  // namespace ballast::train
