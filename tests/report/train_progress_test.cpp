#include "report/train_progress.h"

#include <gmock/gmock.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>

#include "core/log.h"
#include "core/to_size.h"
#include "tests/support/allocation_hook.h"

namespace ballast {
namespace {

class TrainProgressLine : public testing::Test {
 protected:
  void TearDown() override {
    log::set_level(log::Level::info);
    std::fclose(file_);
    std::free(text_);
  }
  TrainProgress::Output output(bool terminal, int columns = 240) {
    return {
        .file = file_, .terminal = terminal, .columns = columns, .now = [this] { return now_; }};
  }
  static TrainProgress::Step step(std::int64_t n, double loss = 0.5) {
    return {.step = n,
            .epoch = 2,
            .loss = loss,
            .seconds = 3,
            .planned = {{9'260'000'000}, {48 << 20}, {}, {12'400'000'000}},
            .measured = {{9'110'000'000}, {41 << 20}, {}, {11'000'000'000}}};
  }
  std::string text() {
    std::fflush(file_);
    return {text_, size_};
  }

  char* text_ = nullptr;
  std::size_t size_ = 0;
  std::FILE* file_ = open_memstream(&text_, &size_);
  TrainProgress::Time now_{};
};

TEST_F(TrainProgressLine, TellsStepLossTimeAndMemory) {
  TrainProgress p({.total = 100, .gpu = true}, output(false));
  p.step(step(12));
  EXPECT_EQ(text(),
            "ballast: step 12/100, epoch 2, loss 0.5 (0.5), 3.00 s/step, 4 min 24 s left, "
            "GPU 9.11/9.26 GB, RAM 11.0/12.4 GB\n");
}

TEST_F(TrainProgressLine, WithoutAGpuItSpeaksOfRamAlone) {
  TrainProgress p({.total = 100}, output(false));
  p.step(step(12));
  EXPECT_THAT(text(), ::testing::AllOf(::testing::HasSubstr("RAM 11.0/12.4 GB"),
                                       ::testing::Not(::testing::HasSubstr("GPU"))));
}

TEST_F(TrainProgressLine, KeepsItsMemoryNumbersInEightyColumnsAndFewer) {
  for (const int columns : {79, 62, 54}) {
    const std::size_t before = text().size();
    {
      TrainProgress p({.total = 20000, .gpu = true}, output(true, columns));
      p.step(step(12000, 0.08123));
    }
    std::istringstream lines(text().substr(before));
    for (std::string line; std::getline(lines, line, '\r');) {
      if (line.ends_with('\n')) line.pop_back();
      line.erase(0, line.find('K') + 1);  // the terminal's erase sequence
      EXPECT_LE(line.size(), to_size(columns)) << line;
      EXPECT_THAT(line, ::testing::EndsWith("GPU 9.11/9.26 GB RAM 11.0/12.4 GB"));
      EXPECT_THAT(line, ::testing::StartsWith("step 12000/20000"));
    }
  }
}

TEST_F(TrainProgressLine, WritesOneLineASecondToAFileWithoutCarriageReturns) {
  {
    TrainProgress p({.total = 300}, output(false));
    for (int s = 1; s <= 300; ++s) {
      now_ += std::chrono::milliseconds(10);
      p.step(step(s));
    }
  }
  const std::string all = text();
  EXPECT_EQ(std::ranges::count(all, '\n'), 4);  // the first, two more, the last
  EXPECT_EQ(std::ranges::count(all, '\r'), 0);
  EXPECT_EQ(std::ranges::count(all, '\033'), 0);
}

TEST_F(TrainProgressLine, TellsSamplesAndBatchesPerSecondWhereBatchesAreCounted) {
  TrainProgress p({.total = 100}, output(false));
  TrainProgress::Step s = step(12);
  s.samples = 128;
  s.batches = 16;
  p.step(s);
  EXPECT_THAT(text(), testing::HasSubstr(", 3.00 s/step, 42.7 samples/s, 5.33 batches/s, "));
}

TEST_F(TrainProgressLine, WritesALineEveryNStepsToAFileAndTheLastOne) {
  {
    TrainProgress p({.total = 25, .print_every = 10}, output(false));
    for (int s = 1; s <= 25; ++s) p.step(step(s));
  }
  std::string steps;
  std::istringstream lines(text());
  for (std::string line; std::getline(lines, line);) steps += line.substr(0, line.find(',')) + ";";
  EXPECT_EQ(steps,
            "ballast: step 1/25;ballast: step 10/25;ballast: step 20/25;ballast: step 25/25;");
}

TEST_F(TrainProgressLine, RedrawsOneLineOnATerminalTenTimesASecondAtMost) {
  {
    TrainProgress p({.total = 1000}, output(true, 40));
    for (int s = 1; s <= 100; ++s) {
      now_ += std::chrono::milliseconds(10);
      p.step(step(s));
    }
  }
  const std::string all = text();
  EXPECT_EQ(std::ranges::count(all, '\r'), 10);
  EXPECT_EQ(std::ranges::count(all, '\n'), 1);
  EXPECT_TRUE(all.ends_with("\n"));
  EXPECT_THAT(all, ::testing::HasSubstr("\033[Kstep 1/1000 3.00 s RAM 11.0/12.4 GB\r"));
}

TEST_F(TrainProgressLine, SmoothedLossIsThePlainMeanAtFirstAndLeavesOutNaN) {
  TrainProgress p({.total = 100, .print_every = 1000}, output(false));
  p.step(step(1, 1));
  p.step(step(2, NAN));
  p.step(step(3, 2));
  p.step(step(4, 6));
  EXPECT_DOUBLE_EQ(p.smoothed_loss(), 3);
}

TEST_F(TrainProgressLine, TimeLeftFollowsTheRecentSteps) {
  TrainProgress p({.total = 1100, .done = 500, .print_every = 100000}, output(false));
  auto s = step(501);
  s.seconds = 100;  // the first step warms up
  p.step(s);
  for (int i = 502; i <= 1000; ++i) p.step(step(i));
  EXPECT_NEAR(p.seconds_left().value(), 300, 2);
}

TEST_F(TrainProgressLine, IsSilentWhenInfoIsHidden) {
  log::set_level(log::Level::warn);
  {
    TrainProgress p({.total = 5}, output(false));
    p.step(step(1));
  }
  EXPECT_EQ(text(), "");
}

TEST_F(TrainProgressLine, StepAllocatesNothing) {
  SKIP_WITHOUT_ALLOCATION_HOOK();
  std::FILE* const null = std::fopen("/dev/null", "w");
  {
    TrainProgress p({.total = 500}, {.file = null, .terminal = false, .columns = 240, .now = {}});
    p.step(step(1));
    allocation_hook::arm();
    p.step(step(2));
    const auto seen = allocation_hook::disarm();
    EXPECT_EQ(seen.calls(), 0) << seen.first;
  }
  std::fclose(null);
}

}  // namespace
}  // namespace ballast
