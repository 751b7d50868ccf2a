#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "tests/ballast/small_model.h"

// Memory settings that change between steps: the model plans anew and keeps what was trained.

namespace ballast {
namespace {

using support::SmallModel;
using v1::Model;

constexpr v1::LatentSize kReplanned = {.frames = 2, .height = 16, .width = 16};

// What four steps on the same samples give, with something done before each.
struct Outcome {
  std::vector<double> losses, norms;
  std::string file;
};

Outcome train_with(SmallModel& small, Model m,
                   const std::function<void(Model&, int step)>& before_step) {
  const test::TempDir dir;
  Outcome o;
  for (int i = 0; i < 4; ++i) {
    before_step(m, i);
    const v1::StepResult r = m.step(small.samples(2, 2 * i, kReplanned));
    o.losses.push_back(r.loss);
    o.norms.push_back(r.grad_norm);
  }
  EXPECT_EQ(m.steps(), 4);
  m.save_checkpoint(dir.path());
  for (const auto& f : std::filesystem::recursive_directory_iterator(dir.path())) {
    if (f.path().extension() == ".safetensors") o.file += test::read_whole(f.path().string());
  }
  EXPECT_FALSE(o.file.empty());
  return o;
}

void expect_same(const Outcome& a, const Outcome& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  EXPECT_TRUE(a.file == b.file);  // weights and the optimizer's state
}

TEST(Replan, SwitchesBetweenStepsChangeNoBitOfAnAdapter) {
  SmallModel small;
  const Outcome plain = train_with(small, small.open(2, kReplanned), [](Model&, int) {});
  expect_same(train_with(small, small.open(2, kReplanned),
                         [](Model& m, int step) {
                           if (step == 1) m.enable_gradient_checkpointing();
                           if (step == 2) m.enable_offloading();
                           if (step == 3) {
                             m.disable_gradient_checkpointing();
                             m.disable_offloading();
                           }
                         }),
              plain);
}

TEST(Replan, SwitchesBetweenStepsChangeNoBitOfAFullFineTune) {
  SmallModel small;
  const auto open = [&] {
    Model m = small.open(2, kReplanned);
    m.set_training(
        {.method = v1::Method::full, .learning_rate = 1e-3, .ema_decay = 0.9, .seed = 5});
    return m;
  };
  const Outcome plain = train_with(small, open(), [](Model&, int) {});
  expect_same(train_with(small, open(),
                         [](Model& m, int step) {
                           if (step == 2) m.enable_offloading();
                           if (step == 3) m.set_threads(1);
                         }),
              plain);
}

TEST(Replan, TheNewPlanIsTheOneThatRuns) {
  SmallModel small;
  Model m = small.open(2, kReplanned);
  m.disable_gradient_checkpointing();
  m.disable_offloading();
  m.step(small.samples(2, 0, kReplanned));
  const std::uint64_t before = m.measured().device;
  m.enable_gradient_checkpointing();
  m.enable_offloading();
  const v1::Plan lean = m.plan();
  m.step(small.samples(2, 2, kReplanned));
  EXPECT_EQ(m.measured().device, lean.planned.device);
  EXPECT_LT(m.measured().device, before);
}

TEST(Replan, OtherBatchesMayComeLater) {
  SmallModel small;
  Model m = small.open(1, support::kSmallLatent);
  m.step(small.samples(1));
  EXPECT_THROW(m.step(small.samples(2, 0, kReplanned)), v1::Error);
  m.set_batches({v1::Batch(2, kReplanned)});
  EXPECT_EQ(m.step(small.samples(2, 0, kReplanned)).step, 2);
}

TEST(Replan, WhatDoesNotFitLeavesTheModelAsItWas) {
  SmallModel small;
  const Outcome plain = train_with(small, small.open(2, kReplanned), [](Model&, int) {});
  expect_same(train_with(small, small.open(2, kReplanned),
                         [&](Model& m, int step) {
                           if (step != 2) return;
                           m.set_budget({.gpu = 1000, .ram = 1'000'000'000});
                           try {
                             m.step(small.samples(2, 0, kReplanned));
                             ADD_FAILURE() << "a step inside 1,000 bytes";
                           } catch (const v1::Error& e) {
                             EXPECT_EQ(e.code(), v1::ErrorCode::refused);
                             EXPECT_FALSE(e.advice().empty());
                           }
                           m.set_budget({});
                         }),
              plain);
}

TEST(Replan, NothingStaysInTheTemporaryFolder) {
  const test::TempDir dir;
  const char* const before = std::getenv("TMPDIR");
  const std::string kept = before == nullptr ? "" : before;
  ::setenv("TMPDIR", dir.path().c_str(), 1);
  SmallModel small;
  {
    Model m = small.open(2, kReplanned);
    m.step(small.samples(2, 0, kReplanned));
    m.enable_gradient_checkpointing();
    m.step(small.samples(2, 2, kReplanned));
    for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
      EXPECT_FALSE(entry.path().filename().string().starts_with("ballast-model"));
    }
  }
  before == nullptr ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", kept.c_str(), 1);
}

TEST(Replan, StateThatCannotWaitLeavesTheModelAsItWas) {
  const char* const before = std::getenv("TMPDIR");
  const std::string kept = before == nullptr ? "" : before;
  SmallModel small;
  Model m = small.open(2, kReplanned);
  m.step(small.samples(2, 0, kReplanned));
  const test::TempDir dir;
  ::setenv("TMPDIR", dir.path("not there").c_str(), 1);
  m.enable_gradient_checkpointing();
  EXPECT_THROW(m.step(small.samples(2, 2, kReplanned)), v1::Error);
  EXPECT_EQ(m.steps(), 1);
  before == nullptr ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", kept.c_str(), 1);
  EXPECT_EQ(m.step(small.samples(2, 2, kReplanned)).step, 2);
}

// A training process that holds a lot before it calls Ballast.
TEST(AlreadyHeld, CountsAgainstTheRamBudget) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's memory cannot be told from the program's";
#endif
  constexpr std::size_t kHeld = 300'000'000;
  SmallModel small;
  Model m = small.open(2, kReplanned);
  m.set_budget({.ram = 200'000'000});
  EXPECT_TRUE(m.plan().fits);
  std::vector<char> ballast(kHeld);
  for (std::size_t i = 0; i < kHeld; i += 1024) ballast[i] = static_cast<char>(i);
  Model second = small.open(2, kReplanned);
  second.set_budget({.ram = 200'000'000});
  const v1::Plan refused = second.plan();
  EXPECT_FALSE(refused.fits);
  EXPECT_THAT(refused.text, testing::HasSubstr("by this process before Ballast was called"));
  second.set_budget({.ram = 600'000'000});
  const v1::Plan fits = second.plan();
  EXPECT_TRUE(fits.fits);
  EXPECT_THAT(fits.text, testing::HasSubstr("already in this process"));
  EXPECT_GT(fits.planned.ram, kHeld);
  second.step(small.samples(2, 0, kReplanned));
  EXPECT_LE(second.measured().ram, fits.planned.ram);
  // Its own memory is not held against it.
  second.enable_gradient_checkpointing();
  const v1::Plan again = second.plan();
  EXPECT_LT(again.planned.ram, fits.planned.ram + 20'000'000);
  EXPECT_EQ(ballast.size(), kHeld);
}

}  // namespace
}  // namespace ballast
