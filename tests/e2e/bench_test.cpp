// ballast bench: what it measures is the machine's business, that it measures is ours.

#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/e2e/ballast_process.h"
#include "tests/support/temp_dir.h"

namespace ballast::test {
namespace {

using ::testing::HasSubstr;

TEST(Bench, MachineMeasuresEveryRateAndStoresNothingWhenDry) {
  const Finished f =
      run_ballast({"bench", "machine", "--seconds", "0.1", "--dry", "--json", "--folder", "."});
  ASSERT_EQ(f.exit_code, 0) << f.err;
  const auto json = nlohmann::json::parse(f.out);
  for (const char* rate :
       {"gemm_flops", "attention_flops", "attention_backward_flops", "memory_bandwidth",
        "upload_bandwidth", "download_bandwidth", "both_ways_bandwidth", "launch_seconds"}) {
    EXPECT_GT(json.at(rate).get<double>(), 0) << rate;
  }
  EXPECT_EQ(json.at("stored"), "");
}

TEST(Bench, AskedForNothingSaysWhatThereIs) {
  const Finished f = run_ballast({"bench"});
  EXPECT_EQ(f.exit_code, 2);
  EXPECT_THAT(f.err, HasSubstr("bench"));
}

TEST(Bench, AnUnknownModelIsNamed) {
  const Finished f = run_ballast({"bench", "wan", "--model", "15B"});
  EXPECT_EQ(f.exit_code, 2);
  EXPECT_THAT(f.err, HasSubstr("15B"));
}

// A wrong model is refused after the options were read.
TEST(Bench, OldNamesOfOptionsStillWork) {
  for (const char* command : {"wan", "t5"}) {
    for (const char* option : {"--matrix-streaming", "--parts"}) {
      EXPECT_THAT(run_ballast({"bench", command, "--model", "15B", option, "1"}).err,
                  HasSubstr("15B"));
    }
  }
  for (const char* flag : {"--split-backward", "--halves"}) {
    EXPECT_THAT(run_ballast({"bench", "wan", "--model", "15B", flag}).err, HasSubstr("15B"));
  }
}

TEST(Bench, OnTheCpuASpeedHasAUnitThatShowsIt) {
  const TempDir dir;
  ::setenv("CUDA_VISIBLE_DEVICES", "-1", 1);
  const Finished f =
      run_ballast({"bench", "t5", "--model", "flan-t5-small", "--batch", "1", "--source", "8",
                   "--target", "8", "--steps", "1", "--folder", dir.path()});
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, ::testing::ContainsRegex("[1-9][0-9.]* [GM]FLOP/s"));
  EXPECT_THAT(f.out, ::testing::Not(HasSubstr("TFLOP/s")));
}

TEST(Bench, AKeptFileOfAnotherModelIsRefusedAndLeftAlone) {
  const TempDir dir;
  const std::string path = dir.write("weights.bin", "mine");
  const Finished f = run_ballast({"bench", "wan", "--model", "wan2.1-t2v-1.3b", "--file", path});
  EXPECT_EQ(f.exit_code, 2);
  EXPECT_THAT(f.err, ::testing::AllOf(HasSubstr(path), HasSubstr("4 bytes")));
  EXPECT_EQ(read_whole(path), "mine");
}

TEST(Bench, AKeptFileThatCannotBeSaysWhy) {
  const TempDir dir;
  const auto error_for = [](const std::string& path) {
    const Finished f = run_ballast({"bench", "wan", "--model", "wan2.1-t2v-1.3b", "--file", path});
    EXPECT_EQ(f.exit_code, 6);
    return f.err;
  };
  EXPECT_THAT(error_for(dir.path()), HasSubstr("Is a directory"));
  EXPECT_THAT(error_for(dir.path("nowhere/weights.bin")), HasSubstr("No such file or directory"));
}

}  // namespace
}  // namespace ballast::test
