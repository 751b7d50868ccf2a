#include "train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"

namespace ballast::train {
namespace {

constexpr auto kDiffusionPipe = ScheduleStyle::diffusion_pipe;
constexpr auto kTransformers = ScheduleStyle::transformers;

ScheduleOptions schedule(ScheduleKind kind, ScheduleStyle style, std::int64_t warmup,
                         std::int64_t total) {
  return {.kind = kind,
          .style = style,
          .learning_rate = 0.8,
          .warmup_steps = warmup,
          .total_steps = total,
          .min_rate = 0};
}

TEST(Schedule, NamesAreFoundInAnyCase) {
  for (int k = 0; k < 11; ++k) {
    const auto kind = static_cast<ScheduleKind>(k);
    EXPECT_EQ(parse_enum(kScheduleNames, name_of(kind)), kind);
  }
  EXPECT_EQ(parse_enum(kScheduleNames, "Cosine_With_Restarts"), ScheduleKind::cosine_with_restarts);
  EXPECT_EQ(parse_enum(kScheduleNames, "cosin"), std::nullopt);
  EXPECT_EQ(parse_enum(kScheduleNames, ""), std::nullopt);
}

TEST(PiecewiseConstant, HasAFactorForEveryRange) {
  ScheduleOptions o = schedule(ScheduleKind::piecewise_constant, kTransformers, 5, 0);
  o.pieces = step_rules_of("1:10,0.1:20,0.005").value();
  EXPECT_DOUBLE_EQ(learning_rate(o, 0), 0.8) << "no warm-up";
  EXPECT_DOUBLE_EQ(learning_rate(o, 9), 0.8);
  EXPECT_DOUBLE_EQ(learning_rate(o, 10), 0.08);
  EXPECT_DOUBLE_EQ(learning_rate(o, 19), 0.08);
  EXPECT_DOUBLE_EQ(learning_rate(o, 20), 0.004);
  EXPECT_DOUBLE_EQ(learning_rate(o, 1'000'000), 0.004);
  o.pieces = step_rules_of("0.5").value();
  EXPECT_DOUBLE_EQ(learning_rate(o, 3), 0.4);
  for (const char* wrong : {"", "1:10", "1:10,", "1:20,0.5:10,1", "1:x,1", "a:1,1", "1:0,1",
                            "-1:5,1", "1:10,0.1:10,1", "1:5:6,1"}) {
    EXPECT_EQ(step_rules_of(wrong).has_value(), false) << wrong;
  }
  o.pieces.clear();
  EXPECT_THROW(learning_rate(o, 0), Error);
}

TEST(DiffusionPipeSchedule, WarmsUpFromAShareToTheWholeRate) {
  for (const auto kind : {ScheduleKind::constant, ScheduleKind::linear, ScheduleKind::cosine}) {
    const ScheduleOptions o = schedule(kind, kDiffusionPipe, 4, 100);
    EXPECT_DOUBLE_EQ(learning_rate(o, 0), 0.2);  // lr / W
    EXPECT_DOUBLE_EQ(learning_rate(o, 1), 0.8 * (0.25 + 0.75 * 0.25));
    EXPECT_DOUBLE_EQ(learning_rate(o, 3), 0.8 * (0.25 + 0.75 * 0.75));
    EXPECT_DOUBLE_EQ(learning_rate(o, 4), 0.8) << "the main part starts at its own 0";
  }
}

TEST(DiffusionPipeSchedule, DecaysOverAllStepsCountedFromTheWarmUp) {
  const ScheduleOptions linear = schedule(ScheduleKind::linear, kDiffusionPipe, 4, 100);
  EXPECT_DOUBLE_EQ(learning_rate(linear, 4 + 25), 0.6);
  EXPECT_DOUBLE_EQ(learning_rate(linear, 4 + 100), 0);
  EXPECT_DOUBLE_EQ(learning_rate(linear, 4 + 300), 0);
  ScheduleOptions cosine = schedule(ScheduleKind::cosine, kDiffusionPipe, 0, 100);
  cosine.min_rate = 0.2;
  EXPECT_DOUBLE_EQ(learning_rate(cosine, 0), 0.8);
  EXPECT_DOUBLE_EQ(learning_rate(cosine, 50), 0.5);
  EXPECT_NEAR(learning_rate(cosine, 25), 0.2 + 0.6 * (1 + std::sqrt(0.5)) / 2, 1e-15);
  EXPECT_DOUBLE_EQ(learning_rate(cosine, 100), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(cosine, 1000), 0.2);
  const ScheduleOptions constant = schedule(ScheduleKind::constant, kDiffusionPipe, 0, 0);
  EXPECT_DOUBLE_EQ(learning_rate(constant, 12345), 0.8);
}

TEST(TransformersSchedule, StartsFromZeroWhenItWarmsUp) {
  for (int k = 1; k < 10; ++k) {
    ScheduleOptions o = schedule(static_cast<ScheduleKind>(k), kTransformers, 4, 104);
    o.decay_steps = 50;
    EXPECT_EQ(learning_rate(o, 0), 0) << name_of(o.kind);
    EXPECT_DOUBLE_EQ(learning_rate(o, 1), 0.2) << name_of(o.kind);
    EXPECT_DOUBLE_EQ(learning_rate(o, 3), 0.6) << name_of(o.kind);
    EXPECT_DOUBLE_EQ(learning_rate(o, 4), 0.8) << name_of(o.kind);
    o.warmup_steps = 0;
    EXPECT_DOUBLE_EQ(learning_rate(o, 0), 0.8) << name_of(o.kind);
  }
  EXPECT_DOUBLE_EQ(learning_rate(schedule(ScheduleKind::constant, kTransformers, 4, 10), 0), 0.8)
      << "constant has no warm-up";
}

TEST(TransformersSchedule, FollowsEachKindsFormula) {
  const auto at = [](ScheduleOptions o, std::int64_t k) { return learning_rate(o, k); };
  const auto of = [](ScheduleKind kind) { return schedule(kind, kTransformers, 4, 104); };

  EXPECT_DOUBLE_EQ(at(of(ScheduleKind::constant_with_warmup), 99), 0.8);

  EXPECT_DOUBLE_EQ(at(of(ScheduleKind::linear), 29), 0.6);  // (104 - 29) / 100
  EXPECT_DOUBLE_EQ(at(of(ScheduleKind::linear), 104), 0);
  EXPECT_DOUBLE_EQ(at(of(ScheduleKind::linear), 200), 0);

  EXPECT_DOUBLE_EQ(at(of(ScheduleKind::cosine), 54), 0.4);
  EXPECT_NEAR(at(of(ScheduleKind::cosine), 104), 0, 1e-16);

  ScheduleOptions restarts = of(ScheduleKind::cosine_with_restarts);
  restarts.cycles = 2;
  EXPECT_DOUBLE_EQ(at(restarts, 4 + 25), 0.4);
  EXPECT_DOUBLE_EQ(at(restarts, 4 + 50), 0.8);
  EXPECT_DOUBLE_EQ(at(restarts, 4 + 75), 0.4);
  EXPECT_EQ(at(restarts, 104), 0);

  ScheduleOptions polynomial = of(ScheduleKind::polynomial);
  polynomial.power = 2;
  EXPECT_DOUBLE_EQ(at(polynomial, 54), (0.8 - 1e-7) * 0.25 + 1e-7);
  EXPECT_DOUBLE_EQ(at(polynomial, 500), 1e-7);

  ScheduleOptions inverse = of(ScheduleKind::inverse_sqrt);
  EXPECT_DOUBLE_EQ(at(inverse, 16), 0.4);  // timescale = warm-up = 4
  inverse.timescale = 12;
  EXPECT_DOUBLE_EQ(at(inverse, 4 + 36), 0.4);
  inverse.timescale = 0;
  inverse.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(at(inverse, 30000), 0.4);

  ScheduleOptions floor = of(ScheduleKind::cosine_with_min_lr);
  floor.min_rate_ratio = 0.5;
  EXPECT_DOUBLE_EQ(at(floor, 54), 0.6);
  EXPECT_DOUBLE_EQ(at(floor, 104), 0.4);

  ScheduleOptions stable = of(ScheduleKind::warmup_stable_decay);
  stable.decay_steps = 20;
  stable.min_rate_ratio = 0.25;
  EXPECT_DOUBLE_EQ(at(stable, 83), 0.8);
  EXPECT_DOUBLE_EQ(at(stable, 94), 0.5);
  EXPECT_DOUBLE_EQ(at(stable, 104), 0.2);
  EXPECT_DOUBLE_EQ(at(stable, 1000), 0.2);

  ScheduleOptions rex = of(ScheduleKind::rex);
  EXPECT_DOUBLE_EQ(at(rex, 54), 0.8 * 0.5 / 0.55);
  EXPECT_EQ(at(rex, 104), 0);
  rex.min_rate_ratio = 0.5;
  EXPECT_DOUBLE_EQ(at(rex, 104), 0.4);
}

TEST(PerEpochCosine, MovesAtTheEndsOfEpochs) {
  ScheduleOptions o = schedule(ScheduleKind::cosine, ScheduleStyle::per_epoch_cosine, 5, 40);
  o.steps_per_epoch = 10;
  o.min_rate = 0.2;
  EXPECT_DOUBLE_EQ(learning_rate(o, 0), 0.8) << "no warm-up";
  EXPECT_DOUBLE_EQ(learning_rate(o, 9), 0.8);
  EXPECT_NEAR(learning_rate(o, 10), 0.2 + 0.6 * (1 + std::sqrt(0.5)) / 2, 1e-15);
  EXPECT_DOUBLE_EQ(learning_rate(o, 20), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(o, 29), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(o, 40), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(o, 400), 0.2);
}

TEST(Schedule, SaysWhatItLacks) {
  const auto code = [](const ScheduleOptions& o) {
    try {
      learning_rate(o, 5);
    } catch (const Error& e) {
      return e.code();
    }
    return ErrorCode::internal;
  };
  EXPECT_EQ(code(schedule(ScheduleKind::linear, kTransformers, 0, 0)), ErrorCode::usage);
  EXPECT_EQ(code(schedule(ScheduleKind::cosine, kDiffusionPipe, 0, 0)), ErrorCode::usage);
  EXPECT_EQ(code(schedule(ScheduleKind::warmup_stable_decay, kTransformers, 0, 100)),
            ErrorCode::usage);
  EXPECT_EQ(code(schedule(ScheduleKind::cosine, ScheduleStyle::per_epoch_cosine, 0, 100)),
            ErrorCode::usage);
}

}  // namespace
}  // namespace ballast::train
