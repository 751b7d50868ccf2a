#include "report/last_run.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>

#include "core/error.h"
#include "tests/support/temp_dir.h"

namespace ballast {
namespace {

using test::TempDir;

class LastRun : public testing::Test {
 protected:
  void SetUp() override { ::setenv("XDG_STATE_HOME", dir_.path("state").c_str(), 1); }
  void TearDown() override { ::unsetenv("XDG_STATE_HOME"); }
  TempDir dir_;
};

TEST_F(LastRun, IsRememberedAcrossProcesses) {
  EXPECT_FALSE(last_run().has_value());
  remember_last_run("/runs/one/flight_record");
  remember_last_run("/runs/two/flight_record");
  EXPECT_EQ(last_run(), "/runs/two/flight_record");
}

TEST_F(LastRun, HomeThatCannotBeWrittenIsNoError) {
  dir_.write("state", "a file, not a folder");
  remember_last_run("/runs/one/flight_record");
  EXPECT_FALSE(last_run().has_value());
}

TEST_F(LastRun, PathsThatNobodyWroteAreSafeToPrint) {
  dir_.write("state/ballast/last_run", std::string_view("/runs/a\0b\n", 10));
  EXPECT_FALSE(last_run().has_value());
  const std::string hostile = "/\x1b[2J" + std::string(60'000, 'x');
  dir_.write("state/ballast/last_run", hostile + "\n");
  ASSERT_EQ(last_run(), hostile);
  try {
    find_flight_record(hostile);
    FAIL() << "a name of 60,000 bytes was found";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::io);
    EXPECT_EQ(std::string_view(e.what()).find('\x1b'), std::string_view::npos);
    EXPECT_LT(std::string_view(e.what()).size(), 1000u);
  }
}

TEST_F(LastRun, NewestRunOfAnOutputFolderIsFound) {
  EXPECT_FALSE(find_flight_record(dir_.path("nowhere")).has_value());
  dir_.write("out/20260101/flight_record", "a");
  dir_.write("out/20260102/flight_record", "b");
  dir_.write("out/notes/other", "c");
  const auto now = std::filesystem::file_time_type::clock::now();
  std::filesystem::last_write_time(dir_.path("out/20260101/flight_record"), now);
  std::filesystem::last_write_time(dir_.path("out/20260102/flight_record"),
                                   now - std::chrono::hours(1));
  EXPECT_EQ(find_flight_record(dir_.path("out")), dir_.path("out/20260101/flight_record"));
  EXPECT_EQ(find_flight_record(dir_.path("out/20260102")), dir_.path("out/20260102/flight_record"));
  EXPECT_EQ(find_flight_record(dir_.path("out/notes/other")), dir_.path("out/notes/other"));
}

}  // namespace
}  // namespace ballast
