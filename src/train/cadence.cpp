#include "train/cadence.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace ballast::train {

CadenceWatch::CadenceWatch(const std::string& what, const Cadence& cadence,
                           std::int64_t global_batch, std::function<Time()> now)
    : cadence_(cadence), now_(std::move(now)) {
  check(global_batch > 0, "global batch of {}", global_batch);
  const auto positive = [&](const char* unit, const auto& value) {
    if (value && !(*value > 0 && std::isfinite(static_cast<double>(*value)))) {
      fail(ErrorCode::input,
           fmt::format("{}_{} = {}: expected a number above 0", what, unit, *value),
           {{"leave the key out", "it then never happens for that reason"}});
    }
  };
  positive("epochs", cadence_.epochs);
  positive("steps", cadence_.steps);
  positive("examples", cadence_.examples);
  positive("minutes", cadence_.minutes);
  if (cadence_.examples) {
    example_steps_ = std::max<std::int64_t>(1, *cadence_.examples / global_batch);
  }
  if (!now_) now_ = [] { return std::chrono::steady_clock::now(); };
  since_ = now_();
}

Due CadenceWatch::due(const StepDone& done) const {
  Due due;
  due.epoch =
      cadence_.epochs && done.epoch_finished > 0 && done.epoch_finished % *cadence_.epochs == 0;
  due.step = (cadence_.steps && done.step % *cadence_.steps == 0) ||
             (example_steps_ > 0 && done.step % example_steps_ == 0);
  due.time = cadence_.minutes &&
             now_() - since_ >= std::chrono::duration<double, std::ratio<60>>(*cadence_.minutes);
  return due;
}

void CadenceWatch::done() { since_ = now_(); }

}  // namespace ballast::train
