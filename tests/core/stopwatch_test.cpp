#include "core/stopwatch.h"

#include <gtest/gtest.h>

#include "tests/support/fake_clock.h"

namespace ballast::stopwatch_test {
namespace {

using test::FakeClock;
using namespace std::chrono_literals;

TEST(Stopwatch, LapsAddUpToTheWholeTime) {
  const Stopwatch whole(FakeClock::now);
  Stopwatch watch(FakeClock::now);
  FakeClock::advance(2s);
  EXPECT_EQ(watch.lap(), 2);
  FakeClock::advance(500ms);
  EXPECT_EQ(watch.seconds(), 0.5);
  FakeClock::advance(500ms);
  EXPECT_EQ(watch.lap(), 1);
  EXPECT_EQ(watch.seconds(), 0);
  EXPECT_EQ(whole.seconds(), 3);
}

TEST(Stopwatch, RunsByTheMachinesClockUnlessToldOtherwise) {
  const auto before = std::chrono::steady_clock::now();
  const Stopwatch watch;
  while (std::chrono::steady_clock::now() == before) {
  }
  const double seconds = watch.seconds();
  const std::chrono::duration<double> around = std::chrono::steady_clock::now() - before;
  EXPECT_GE(seconds, 0);
  EXPECT_LE(seconds, around.count());
}

}  // namespace
}  // namespace ballast::stopwatch_test
