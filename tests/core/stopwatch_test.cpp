#include "core/stopwatch.h"

#include <gtest/gtest.h>

#include <thread>

namespace ballast::stopwatch_test {
namespace {

TEST(Stopwatch, LapsAddUpToTheWholeTime) {
  constexpr double kRounding = 1e-9;  // of sums of seconds
  const Stopwatch around;
  Stopwatch watch;
  const Stopwatch inside;
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const double first = watch.lap();
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const double least = inside.seconds();
  const double second = watch.lap();
  const double most = around.seconds();
  EXPECT_GE(first, 0.002);
  EXPECT_GE(second, 0.001);
  EXPECT_GE(first + second, least - kRounding);
  EXPECT_LE(first + second, most + kRounding);
}

}  // namespace
}  // namespace ballast::stopwatch_test
