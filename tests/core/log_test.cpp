#include "core/log.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace ballast {
namespace {

class Log : public testing::Test {
 protected:
  void SetUp() override { log::set_file(file_); }
  void TearDown() override {
    log::set_file(nullptr);
    log::set_rank(-1);
    log::set_level(log::Level::info);
    std::fclose(file_);
    std::free(text_);
  }
  std::string text() {
    std::fflush(file_);
    return {text_, size_};
  }

  char* text_ = nullptr;
  std::size_t size_ = 0;
  std::FILE* file_ = open_memstream(&text_, &size_);
};

TEST_F(Log, MarksTheLevelAndEndsTheLine) {
  log::set_level(log::Level::debug);
  log::info("{} blocks of {}", 40, "14B");
  log::warn("slow disk");
  log::debug("x = {:.2f}", 1.0);
  EXPECT_EQ(text(),
            "ballast: 40 blocks of 14B\nballast: warning: slow disk\nballast: debug: x = 1.00\n");
}

TEST_F(Log, ShowsWhatTheLevelAllows) {
  const auto shown_at = [&](log::Level level) {
    const std::size_t before = text().size();
    log::set_level(level);
    log::debug("d");
    log::info("i");
    log::warn("w");
    const std::string all = text().substr(before);
    return std::count(all.begin(), all.end(), '\n');
  };
  EXPECT_EQ(shown_at(log::Level::debug), 3);
  EXPECT_EQ(shown_at(log::Level::info), 2);
  EXPECT_EQ(shown_at(log::Level::warn), 1);
  EXPECT_EQ(shown_at(log::Level::off), 0);
}

TEST_F(Log, NamesTheRank) {
  log::set_rank(3);
  log::warn("late");
  EXPECT_EQ(text(), "ballast[3]: warning: late\n");
}

TEST_F(Log, LevelsHaveNames) {
  EXPECT_EQ(log::parse_level("debug"), log::Level::debug);
  EXPECT_EQ(log::parse_level("off"), log::Level::off);
  EXPECT_EQ(log::parse_level("Info"), std::nullopt);
  EXPECT_EQ(log::parse_level(""), std::nullopt);
}

TEST_F(Log, LinesOfThreadsDoNotMix) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) log::info("{}", std::string(50, static_cast<char>('a' + t)));
    });
  }
  for (std::thread& t : threads) t.join();
  const std::string all = text();
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 800);
  for (std::size_t at = 0; at < all.size(); at += 60) {
    const std::string line = all.substr(at, 60);
    EXPECT_EQ(line, "ballast: " + std::string(50, line[9]) + "\n");
  }
}

TEST_F(Log, ASinkTakesLinesAndGivesThemBack) {
  std::vector<std::pair<log::Level, std::string>> lines;
  log::set_sink(
      {.line = [&](log::Level level, std::string_view line) { lines.emplace_back(level, line); },
       .progress = {}});
  EXPECT_FALSE(log::shows_progress());
  log::info("{} blocks", 40);
  log::warn("slow disk");
  log::debug("hidden");
  EXPECT_EQ(text(), "");
  log::set_sink({});
  log::info("on stderr again");
  EXPECT_EQ(text(), "ballast: on stderr again\n");
  const std::vector<std::pair<log::Level, std::string>> expected = {
      {log::Level::info, "40 blocks"}, {log::Level::warn, "slow disk"}};
  EXPECT_EQ(lines, expected);
}

// The environment is read once per process, so each value gets a process of its own.
class LogDeathTest : public testing::Test {
 protected:
  void SetUp() override { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(LogDeathTest, EnvironmentSetsTheLevel) {
  const auto say_all = [](const char* value) {
    setenv("BALLAST_LOG", value, 1);
    log::debug("d");
    log::info("i");
    log::warn("w");
    std::_Exit(0);
  };
  EXPECT_EXIT(say_all("debug"), testing::ExitedWithCode(0),
              "^ballast: debug: d\nballast: i\nballast: warning: w\n$");
  EXPECT_EXIT(say_all(""), testing::ExitedWithCode(0), "^ballast: i\nballast: warning: w\n$");
  EXPECT_EXIT(say_all("off"), testing::ExitedWithCode(0), "^$");
  EXPECT_EXIT(say_all("loud"), testing::ExitedWithCode(0),
              "BALLAST_LOG is \"loud\", expected debug, info, warn or off\nballast: i\n");
}

}  // namespace
}  // namespace ballast
