#include "train/run/run_files.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/temp_dir.h"

namespace ballast::train {
namespace {

TrainConfig saving_to(const std::string& folder) {
  TrainConfig c;
  c.output_dir = folder;
  c.keep_checkpoints = 3;
  c.checkpoint.steps = 10;
  c.save.epochs = 1;
  c.optimizer.kind = OptimizerKind::adamw;
  return c;
}

Bytes line_of(const PlanFiles& files, std::string_view name) {
  for (const ProcessLine& l : files.lines) {
    if (l.name == name) return l.bytes;
  }
  return {};
}

PlanFiles planned(const TrainConfig& c, std::int64_t steps = 100) {
  return files_of({.config = c,
                   .total_steps = steps,
                   .steps_per_epoch = 25,
                   .parameters = 1'000'000,
                   .trained = DType::f32,
                   .saved = DType::bf16},
                  true);
}

TEST(RunFiles, CheckpointsAreThoseThatAreKeptAndTheOneBeingWritten) {
  const test::TempDir dir;
  TrainConfig c = saving_to(dir.path("out"));
  const Bytes one = checkpoint_size(1'000'000, DType::f32, c.optimizer);
  EXPECT_GE(one, Bytes{12'000'000});  // values and two moments
  EXPECT_LE(one, Bytes{12'200'000});
  EXPECT_EQ(line_of(planned(c), "checkpoints"), one * 4);
  EXPECT_EQ(planned(c).freed_by_one_checkpoint, one * 2);
  EXPECT_EQ(line_of(planned(c, 5), "checkpoints"), one);      // at the end alone
  EXPECT_EQ(line_of(planned(c, 0), "checkpoints"), one * 4);  // how many steps is not known yet
  EXPECT_TRUE(planned(c).free.has_value());
}

TEST(RunFiles, ModelsAreAllThatAreSaved) {
  const test::TempDir dir;
  const TrainConfig c = saving_to(dir.path("out"));
  const Bytes models = line_of(planned(c), "saved models");
  EXPECT_GE(models, Bytes{5 * 2'000'000});  // after each of four epochs, and at most one at the end
  EXPECT_LE(models, Bytes{5 * 2'100'000});
}

TEST(RunFiles, AResumedRunHasSomeOfThem) {
  const test::TempDir dir;
  TrainConfig c = saving_to(dir.path("out"));
  c.resume = "";
  const Bytes one = checkpoint_size(1'000'000, DType::f32, c.optimizer);
  EXPECT_EQ(line_of(planned(c), "checkpoints"), one * 4);  // nothing to resume from yet
  for (const char* step : {"step-00000060", "step-00000070", "step-00000080"}) {
    std::filesystem::create_directories(dir.path("out/20260101_00-00-00/checkpoints/") + step);
  }
  const PlanFiles files = planned(c);
  EXPECT_EQ(line_of(files, "checkpoints"), one);
  EXPECT_LE(line_of(files, "saved models"), Bytes{2 * 2'100'000});
  EXPECT_TRUE(planned(c, 80).lines.empty());  // it is done
}

TEST(RunFiles, StateFollowsTheOptimizer) {
  const auto size = [](OptimizerKind kind) {
    return checkpoint_size(1'000'000, DType::f32, {.kind = kind}).count / 100'000;
  };
  EXPECT_EQ(size(OptimizerKind::adamw), 120u);
  EXPECT_EQ(size(OptimizerKind::adamw8bit), 60u);
  EXPECT_EQ(size(OptimizerKind::adafactor), 40u);
}

TEST(RunFiles, CadencesAreCountedBetweenTwoSteps) {
  Cadence c;
  EXPECT_EQ(times_due(c, 0, 1000, 10, 1), 0);
  c.steps = 100;
  EXPECT_EQ(times_due(c, 0, 1000, 10, 1), 10);
  EXPECT_EQ(times_due(c, 950, 1000, 10, 1), 1);
  EXPECT_EQ(times_due(c, 1000, 1000, 10, 1), 0);
  c.steps.reset();
  c.epochs = std::int64_t{1} << 62;
  EXPECT_EQ(times_due(c, 0, 1000, 10, 1), 0);
  c.epochs.reset();
  c.examples = 40;
  EXPECT_EQ(times_due(c, 0, 100, 10, 4), 10);
  c.examples.reset();
  c.minutes = 5;
  EXPECT_EQ(times_due(c, 0, 100, 10, 4), 1);
}

}  // namespace
}  // namespace ballast::train
