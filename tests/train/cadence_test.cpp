#include "train/cadence.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace ballast::train {
namespace {

using namespace std::chrono_literals;

Cadence operator+(Cadence a, const Cadence& b) {
  if (b.epochs) a.epochs = b.epochs;
  if (b.steps) a.steps = b.steps;
  return a;
}
Cadence epochs(std::int64_t n) {
  Cadence c;
  c.epochs = n;
  return c;
}
Cadence steps(std::int64_t n) {
  Cadence c;
  c.steps = n;
  return c;
}
Cadence examples(std::int64_t n) {
  Cadence c;
  c.examples = n;
  return c;
}
Cadence minutes(double n) {
  Cadence c;
  c.minutes = n;
  return c;
}

// Ten steps per epoch; which of the first 25 steps are due, in words.
std::string due_steps(const Cadence& cadence, std::int64_t global_batch, std::int64_t from = 1) {
  const CadenceWatch watch("save_every_n", cadence, global_batch);
  std::string text;
  for (std::int64_t step = from; step <= 25; ++step) {
    const Due due = watch.due({.step = step, .epoch_finished = step % 10 == 0 ? step / 10 : 0});
    if (due) text += fmt::format("{}{}{} ", step, due.epoch ? "e" : "", due.step ? "s" : "");
  }
  return text;
}

TEST(Cadence, IsDueWhenItsUnitsAreFull) {
  EXPECT_EQ(due_steps({}, 4), "");
  EXPECT_EQ(due_steps(epochs(1), 4), "10e 20e ");
  EXPECT_EQ(due_steps(epochs(2), 4), "20e ");
  EXPECT_EQ(due_steps(steps(10), 4), "10s 20s ");
  EXPECT_EQ(due_steps(epochs(2) + steps(10), 4), "10s 20es ");
  EXPECT_EQ(due_steps(examples(40), 4), "10s 20s ");
  EXPECT_EQ(due_steps(examples(43), 4), "10s 20s ");
  EXPECT_EQ(due_steps(examples(43), 5), "8s 16s 24s ");
  EXPECT_EQ(due_steps(examples(48) + steps(20), 4), "12s 20s 24s ");
}

TEST(Cadence, MoreThanABatchOfExamplesIsEveryStep) {
  EXPECT_EQ(due_steps(examples(3), 4, 23), "23s 24s 25s ");
}

TEST(Cadence, IsTheSameForAResumedRun) {
  const Cadence cadence = epochs(1) + steps(7);
  EXPECT_EQ(due_steps(cadence, 1), "7s 10e 14s 20e 21s ");
  EXPECT_EQ(due_steps(cadence, 1, 8), "10e 14s 20e 21s ");
  EXPECT_EQ(due_steps(cadence, 1, 14), "14s 20e 21s ");
}

TEST(Cadence, MinutesCountFromTheLastTime) {
  CadenceWatch::Time now{};
  CadenceWatch watch("checkpoint_every_n", minutes(1.5), 1, [&] { return now; });
  EXPECT_FALSE(watch.due({.step = 1}));
  now += 89s;
  EXPECT_FALSE(watch.due({.step = 2}));
  now += 1s;
  EXPECT_TRUE(watch.due({.step = 3}).time);
  EXPECT_TRUE(watch.due({.step = 3}).time);  // until it was done
  watch.done();
  EXPECT_FALSE(watch.due({.step = 3}));
  now += 60s;
  watch.done();  // for another reason: the time starts again
  now += 60s;
  EXPECT_FALSE(watch.due({.step = 4}));
  now += 30s;
  EXPECT_TRUE(watch.due({.step = 5}));
}

TEST(Cadence, RefusesWhatIsNotAboveZero) {
  EXPECT_FAILS(CadenceWatch("save_every_n", steps(0), 1), ErrorCode::input,
               "save_every_n_steps = 0");
  EXPECT_FAILS(CadenceWatch("eval_every_n", epochs(-1), 1), ErrorCode::input,
               "eval_every_n_epochs = -1");
  EXPECT_FAILS(CadenceWatch("checkpoint_every_n", minutes(0.0), 1), ErrorCode::input,
               "checkpoint_every_n_minutes = 0");
}

}  // namespace
}  // namespace ballast::train
