#include "train/nan_guard.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/errors.h"

namespace ballast::train {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(NanGuard, KnowsBadNumbers) {
  EXPECT_FALSE(NanGuard::bad(0.5, 1e300));
  for (const double bad : {kNan, kInf, -kInf}) {
    EXPECT_TRUE(NanGuard::bad(bad, 1));
    EXPECT_TRUE(NanGuard::bad(1, bad));
  }
}

TEST(NanGuard, StopsWithStepNumbersAndSamples) {
  NanGuard guard(OnNan::stop);
  const auto error = test::error_of([&] {
    guard.skip({.step = 812,
                .loss = kNan,
                .gradient_norm = kInf,
                .learning_rate = 1e-4,
                .samples = {"clips/a.mp4", "clips/\nb.mp4"}});
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::input);
  EXPECT_THAT(error->what(),
              testing::StartsWith("step 812: loss nan, gradient norm inf, learning "
                                  "rate 0.0001; samples: clips/a.mp4, clips/\\x0ab"));
  EXPECT_EQ(guard.skipped(), 0);
}

// Weights that were never changed are those of the file: a lower learning rate cannot help.
TEST(NanGuard, DoesNotBlameTheLearningRateBeforeTheFirstUpdate) {
  const auto advice_of = [](NanGuard guard, std::int64_t step) {
    const auto error = test::error_of([&] {
      for (;; ++step) {
        guard.skip(
            {.step = step, .loss = kNan, .gradient_norm = 1, .learning_rate = 1, .samples = {"a"}});
      }
    });
    std::string text = error->what();
    for (const Advice& a : error->advice()) text += "; " + a.change;
    return text;
  };
  using testing::AllOf;
  using testing::HasSubstr;
  using testing::Not;
  const auto of_the_file = AllOf(HasSubstr("before any weight was changed"),
                                 HasSubstr("in the files of the model"), Not(HasSubstr("lower")));
  EXPECT_THAT(advice_of(NanGuard(OnNan::stop), 1), of_the_file);
  EXPECT_THAT(advice_of(NanGuard(OnNan::skip, 3), 1), of_the_file);
  EXPECT_THAT(advice_of(NanGuard(OnNan::skip, 3, 1, 4), 5), of_the_file);  // resumed, all skipped
  EXPECT_THAT(advice_of(NanGuard(OnNan::stop), 2), HasSubstr("lower the learning rate"));
  EXPECT_THAT(advice_of(NanGuard(OnNan::skip, 3), 7), HasSubstr("a lower learning rate"));
}

TEST(NanGuard, SkipsUntilThereAreTooManyInARow) {
  NanGuard guard(OnNan::skip, 3);
  const BadStep bad{.step = 5, .loss = kNan, .gradient_norm = 1, .learning_rate = 1, .samples = {}};
  EXPECT_THAT(guard.skip(bad), testing::HasSubstr("skipped, weights unchanged (1 in a row, 1 in"));
  guard.skip(bad);
  guard.good();
  guard.skip(bad);
  EXPECT_THAT(guard.skip(bad), testing::HasSubstr("(2 in a row, 4 in this run)"));
  EXPECT_FAILS(guard.skip(bad), ErrorCode::input, "such step number 3 in a row");
}

TEST(NanGuard, GoesOnCountingAfterAResume) {
  NanGuard before(OnNan::skip, 3);
  const BadStep bad{.step = 5, .loss = kInf, .gradient_norm = 1, .learning_rate = 1, .samples = {}};
  before.skip(bad);
  before.skip(bad);
  NanGuard after(OnNan::skip, 3, before.consecutive(), before.skipped());
  EXPECT_FAILS(after.skip(bad), ErrorCode::input, "in a row");
}

TEST(NanGuard, NamesAFewOfManySamples) {
  NanGuard guard(OnNan::skip);
  BadStep bad{.step = 1, .loss = kNan, .gradient_norm = 0, .learning_rate = 0, .samples = {}};
  for (int i = 0; i < 20; ++i) bad.samples.push_back(fmt::format("s{}", i));
  EXPECT_THAT(guard.skip(bad), testing::HasSubstr("s6, s7 and 12 more: skipped"));
}

}  // namespace
}  // namespace ballast::train
