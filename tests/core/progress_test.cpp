#include "core/progress.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>
#include <vector>

#include "core/log.h"
#include "tests/support/allocation_hook.h"

namespace ballast {
namespace {

using std::chrono::milliseconds;

class ProgressLine : public testing::Test {
 protected:
  void TearDown() override {
    log::set_level(log::Level::info);
    std::fclose(file_);
    std::free(text_);
  }
  Progress::Output output(bool terminal) {
    return {.file = file_, .terminal = terminal, .now = [this] { return now_; }};
  }
  void wait(int ms) { now_ += milliseconds(ms); }
  std::string text() {
    std::fflush(file_);
    return {text_, size_};
  }

  char* text_ = nullptr;
  std::size_t size_ = 0;
  std::FILE* file_ = open_memstream(&text_, &size_);
  Progress::Time now_{};
};

TEST_F(ProgressLine, SaysNothingUnderTwoSeconds) {
  for (const bool terminal : {false, true}) {
    Progress p("reading", 10, Progress::Unit::count, 0, output(terminal));
    for (int i = 0; i < 10; ++i) {
      wait(199);
      p.add();
    }
  }
  EXPECT_EQ(text(), "");
}

TEST_F(ProgressLine, WritesALineEveryTenSecondsToAFile) {
  {
    Progress p("training", 10, Progress::Unit::count, 0, output(false));
    for (int i = 0; i < 10; ++i) {
      wait(4000);
      p.add();
    }
  }
  EXPECT_EQ(text(),
            "ballast: training: 1 of 10, 4.00 s each, 36 s left\n"
            "ballast: training: 4 of 10, 4.00 s each, 24 s left\n"
            "ballast: training: 7 of 10, 4.00 s each, 12 s left\n"
            "ballast: training: 10 of 10, 4.00 s each, 0 s left\n"
            "ballast: training: 10 after 40 s, 4.00 s each\n");
}

TEST_F(ProgressLine, RewritesItsLineOnATerminal) {
  {
    Progress p("training", 400, Progress::Unit::count, 0, output(true));
    for (int i = 0; i < 50; ++i) {  // 2.5 s in steps too small to draw each
      wait(50);
      p.add();
    }
  }
  const std::string all = text();
  EXPECT_TRUE(all.starts_with("\033[Kballast: training: 40 of 400, 20.0 per s, 18 s left\r\033[K"))
      << all;
  EXPECT_TRUE(
      all.ends_with("\033[Kballast: training: stopped at 50 of 400 after 3 s, 20.0 per s\n"))
      << all;
  std::size_t drawn = 0;
  for (const char c : all) drawn += c == '\r';
  EXPECT_EQ(drawn, 6u);  // at 2.0, 2.1, ... 2.5 s
}

TEST_F(ProgressLine, CountsBytes) {
  {
    Progress p("reading weights", 28'600'000'000, Progress::Unit::bytes, 0, output(false));
    wait(2500);
    p.add(3'000'000'000);
    wait(10000);
    p.add(25'600'000'000);
  }
  EXPECT_EQ(text(),
            "ballast: reading weights: 3.000 GB of 28.60 GB, 1.200 GB/s, 21 s left\n"
            "ballast: reading weights: 28.60 GB of 28.60 GB, 2.288 GB/s, 0 s left\n"
            "ballast: reading weights: 28.60 GB after 13 s, 2.288 GB/s\n");
}

TEST_F(ProgressLine, AResumedRunIsNotCreditedWithWhatWasThere) {
  Progress p("training", 1000, Progress::Unit::count, 900, output(false));
  wait(10000);
  p.add(10);
  EXPECT_EQ(text(), "ballast: training: 910 of 1000, 1.00 s each, 1 min 30 s left\n");
}

TEST_F(ProgressLine, WithoutATotalThereIsNoTimeLeft) {
  Progress p("decoding", 0, Progress::Unit::count, 0, output(false));
  wait(4000);
  p.add(16);
  EXPECT_EQ(text(), "ballast: decoding: 16, 4.0 per s\n");
}

TEST_F(ProgressLine, TellsOfALongWaitThatNeverReported) {
  {
    Progress p("writing", 5, Progress::Unit::count, 0, output(false));
    wait(3000);
  }
  EXPECT_EQ(text(), "ballast: writing: stopped at 0 of 5 after 3 s\n");
}

TEST_F(ProgressLine, FitsTheTerminal) {
  Progress p(std::string(300, 'x'), 10, Progress::Unit::count, 0, output(true));
  wait(3000);
  p.add();
  EXPECT_EQ(text(), "\033[Kballast: " + std::string(79 - 9, 'x') + "\r");
}

TEST_F(ProgressLine, IsHiddenWithTheLog) {
  log::set_level(log::Level::warn);
  {
    Progress p("training", 10, Progress::Unit::count, 0, output(false));
    wait(5000);
    p.add();
  }
  EXPECT_EQ(text(), "");
}

TEST_F(ProgressLine, AddAllocatesNothing) {
  SKIP_WITHOUT_ALLOCATION_HOOK();
  std::FILE* const null = std::fopen("/dev/null", "w");
  setvbuf(null, nullptr, _IONBF, 0);
  {
    Progress p("reading weights", 28'600'000'000, Progress::Unit::bytes, 0,
               {.file = null, .terminal = true, .now = [this] { return now_; }});
    wait(3000);
    log::level();  // reads the environment the first time
    allocation_hook::arm();
    p.add(1'000'000'000);
    const auto seen = allocation_hook::disarm();
    EXPECT_EQ(seen.calls(), 0) << seen.first;
  }
  std::fclose(null);
}

TEST(Duration, IsWrittenInTwoUnits) {
  using std::chrono::seconds;
  EXPECT_EQ(to_string(seconds(0)), "0 s");
  EXPECT_EQ(to_string(seconds(59)), "59 s");
  EXPECT_EQ(to_string(seconds(282)), "4 min 42 s");
  EXPECT_EQ(to_string(seconds(3600 * 3 + 5 * 60)), "3 h 05 min");
  EXPECT_EQ(to_string(seconds(86400 * 2 + 3 * 3600 + 59)), "2 d 3 h");
}

// A program that shows progress itself gets the first record at once and the last one always; in
// between at most ten in a second.
TEST_F(ProgressLine, GoesToASink) {
  std::vector<std::string> seen;
  log::set_sink({.line = {}, .progress = [&](const log::ProgressRecord& r) {
                   seen.push_back(fmt::format("{} {}/{}{}{}", r.what, r.done, r.total,
                                              r.bytes ? " bytes" : "", r.ended ? " ended" : ""));
                 }});
  {
    Progress p("reading", 400, Progress::Unit::bytes, 100, output(false));
    for (int i = 0; i < 3; ++i) {
      wait(60);
      p.add(50);
    }
  }
  log::set_level(log::Level::warn);
  { const Progress hidden("writing", 1, Progress::Unit::count, 0, output(true)); }
  log::set_sink({});
  EXPECT_EQ(text(), "");
  const std::vector<std::string> expected = {"reading 100/400 bytes", "reading 200/400 bytes",
                                             "reading 250/400 bytes ended"};
  EXPECT_EQ(seen, expected);
}

}  // namespace
}  // namespace ballast
