#include "train/config/config.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/to_size.h"

namespace ballast::train {

std::int64_t BatchSizes::for_size(double width, double height) const {
  const double side = std::sqrt(width * height);
  std::int64_t best = plain;
  double nearest = std::numeric_limits<double>::infinity();
  for (const auto& [at, size] : by_side) {
    if (std::abs(at - side) >= nearest) continue;  // the first of two equally near ones
    nearest = std::abs(at - side);
    best = size;
  }
  return best;
}

std::int64_t step_accumulation(const TrainConfig& c) {
  const ParallelConfig& p = c.parallel;
  if (!p.global_batch) return c.gradient_accumulation * p.ranks;
  const std::int64_t micro = c.micro_batch.plain, all = *p.global_batch;
  if (all % micro != 0) {
    fail(ErrorCode::usage,
         fmt::format("--global_batch {}: expected a multiple of the batch size {}", all, micro),
         {{fmt::format("--global_batch {}", (all / micro + 1) * micro), "the next larger one"}});
  }
  return all / micro;
}

std::int64_t global_batch(const TrainConfig& c) {
  return c.micro_batch.plain * step_accumulation(c);
}

std::int64_t total_steps(const TrainConfig& c, std::int64_t steps_per_epoch) {
  check(steps_per_epoch > 0, "{} steps per epoch", steps_per_epoch);
  // epochs is at most kNoEpochLimit = 2^31, so only an absurd epoch could overflow.
  const std::int64_t most = std::numeric_limits<std::int64_t>::max() / steps_per_epoch;
  const std::int64_t all = std::min(c.epochs, most) * steps_per_epoch;
  return c.max_steps ? std::min(all, *c.max_steps) : all;
}

ScheduleOptions schedule_of(const TrainConfig& c, std::int64_t steps_per_epoch) {
  ScheduleOptions s = c.schedule;
  s.steps_per_epoch = steps_per_epoch;
  s.total_steps = total_steps(c, steps_per_epoch);
  if (s.style != ScheduleStyle::transformers && c.epochs < kNoEpochLimit) {
    s.total_steps = c.epochs * steps_per_epoch;
  }
  const auto share = [&](double of_all) {
    return static_cast<std::int64_t>(of_all * static_cast<double>(s.total_steps));
  };
  if (c.warmup_share) s.warmup_steps = share(*c.warmup_share);
  if (c.decay_share) s.decay_steps = share(*c.decay_share);
  (void)learning_rate(s, s.warmup_steps);  // what it lacks is told now, not behind the warm-up
  return s;
}

std::string_view name_of(Dialect d) {
  constexpr std::string_view kNames[] = {"diffusion-pipe", "musubi-tuner", "flow matching"};
  return kNames[to_size(d)];
}

}  // namespace ballast::train
