// Limits of the system that surround a run: threads, address space, folders of libraries.

#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/media_reader.h"
#include "io/media_writer.h"
#include "tests/e2e/ballast_process.h"
#include "tests/support/tiny_training.h"

namespace ballast::test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Runs "$0 $@" behind what a shell does first. Who hangs is killed after 60 s: exit code 137. Some
// builds of OpenBLAS start threads of their own before main; not with this variable.
Finished run_behind(const std::string& shell, const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {
      "-c", "export OPENBLAS_NUM_THREADS=1; " + shell + " exec timeout -s KILL 60 \"$0\" \"$@\"",
      BALLAST_BINARY};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return run_program("/bin/bash", all);
}

class Limits : public ::testing::Test {
 protected:
  Limits() : training_(support::trainable_config(2)) { training_.add_clips(4, {4, 1, 4, 4}); }

  // With streamed weights, so that there are threads for the disk and for copies.
  std::vector<std::string> train() {
    return {"train",     training_.write_config("epochs = 1\n[memory]\nstream_blocks = 2"),
            "--threads", "3",
            "--device",  "cpu"};
  }

  support::TinyTraining training_;
};

TEST_F(Limits, EveryThreadThatCannotBeStartedEndsTheRunWithAnExplanation) {
  int refused = 0;
  for (int n = 1;; ++n) {
    const Finished f = run_behind(
        fmt::format("LD_PRELOAD={} BALLAST_FAULT=thread:EAGAIN:{}+", BALLAST_CALL_FAULT, n),
        train());
    if (f.exit_code == 0) break;
    ++refused;
    ASSERT_EQ(f.exit_code, 5) << "thread " << n << ": " << f.err;
    EXPECT_THAT(f.err, HasSubstr("the system refused to start a thread for "));
    EXPECT_THAT(f.err, HasSubstr("Limits in force: "));
    ASSERT_LT(n, 60) << "it never starts";
  }
  EXPECT_GE(refused,
            5);  // two that compute, one that copies, one or more that read, one for samples
}

// The system may transfer less than it was asked for, or be interrupted, at every call.
TEST_F(Limits, ReadsAndWritesThatComeUpShortAreContinued) {
  for (const char* fault : {"read:short:1+", "write:short:1+", "read:EINTR:3", "write:EINTR:3"}) {
    const Finished f = run_behind(
        fmt::format("LD_PRELOAD={} BALLAST_FAULT={}", BALLAST_CALL_FAULT, fault), train());
    EXPECT_EQ(f.exit_code, 0) << fault << ": " << f.err;
  }
}

TEST_F(Limits, TooLittleAddressSpaceIsNamed) {
  bool refused = false, trained = false;
  for (const int kib : {60'000, 100'000, 150'000, 200'000, 300'000, 500'000, 3'000'000}) {
    const Finished f = run_behind(fmt::format("ulimit -v {};", kib), train());
    // 127: not even the loader had room for the program.
    EXPECT_THAT(f.exit_code, AnyOf(0, 3, 5, 127)) << kib << " KiB: " << f.err;
    if (f.exit_code == 3 || f.exit_code == 5) {
      EXPECT_THAT(f.err, HasSubstr("ulimit -v")) << kib;
    }
    refused |= f.exit_code == 3;
    trained |= f.exit_code == 0;
  }
  EXPECT_TRUE(refused);
  EXPECT_TRUE(trained);
}

TEST_F(Limits, RamBeyondTheDataLimitIsRefusedWithoutAnythingWritten) {
  std::vector<std::string> arguments = train();
  arguments.insert(arguments.end(), {"--ram", "1GB"});
  const Finished f = run_behind("ulimit -d 100000;", arguments);
  EXPECT_EQ(f.exit_code, 3) << f.err;
  EXPECT_THAT(f.err, AllOf(HasSubstr("ulimit -d is 102.4 MB"), HasSubstr("ulimit -d unlimited"),
                           HasSubstr("--ignore-limits")));
  EXPECT_FALSE(std::filesystem::exists(training_.path("out")));
  arguments.push_back("--ignore-limits");
  const Finished ignored = run_behind("ulimit -d 100000;", arguments);
  EXPECT_EQ(ignored.exit_code, 5) << ignored.err;
  EXPECT_THAT(ignored.err, AllOf(HasSubstr("beyond that allocations fail"),
                                 HasSubstr("Limits in force: ulimit -d")));
}

TEST_F(Limits, FilesThatMayNotBeLargeEnoughAreRefusedByName) {
  const Finished f = run_behind("ulimit -f 8;", train());
  EXPECT_EQ(f.exit_code, 3) << f.err;
  EXPECT_THAT(f.err, AllOf(HasSubstr("ulimit -f allows files of 8.192 kB"),
                           HasSubstr("ulimit -f unlimited")));
  EXPECT_FALSE(std::filesystem::exists(training_.path("out")));
  std::vector<std::string> arguments = train();
  arguments.push_back("--ignore-limits");
  const Finished ignored = run_behind("ulimit -f 8;", arguments);
  EXPECT_EQ(ignored.exit_code, 6) << ignored.err;
  EXPECT_THAT(ignored.err, AllOf(HasSubstr("File too large"), HasSubstr("ulimit -f unlimited")));
}

TEST_F(Limits, OpenFilesAreAsManyAsTheHardLimitAllows) {
  const Finished f = run_behind("ulimit -Sn 16;", train());
  EXPECT_EQ(f.exit_code, 0) << f.err;
  const Finished few = run_behind("ulimit -n 12;", train());
  EXPECT_EQ(few.exit_code, 6) << few.err;
  EXPECT_THAT(few.err, AllOf(HasSubstr("Too many open files"), HasSubstr("ulimit -n allows")));
}

TEST(PlanLimits, HoldForThisMachine) {
  const Finished f =
      run_behind("ulimit -v 4000000;", {"plan", "--model", "wan2.2-t2v-a14b", "--mode", "full",
                                        "--frames", "5", "--height", "480", "--width", "832",
                                        "--device", "cpu", "--threads", "2", "--ram", "100000GB"});
  EXPECT_EQ(f.exit_code, 3) << f.err;
  EXPECT_THAT(
      f.err, AllOf(HasSubstr("ulimit -v is 4.096 GB: at most "), HasSubstr("ulimit -v unlimited")));
}

TEST(PlanLimits, DoNotBindThePlanOfAnotherMachine) {
  const std::vector<std::string> arguments = {
      "plan",  "--model", "wan2.2-t2v-a14b", "--mode", "lora",     "--frames", "5",
      "--gpu", "140GB",   "--ram",           "2000GB", "--target", "h200",     "--json"};
  const Finished f = run_program(BALLAST_BINARY, arguments);
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_EQ(nlohmann::json::parse(f.out)["host"]["budget_bytes"], 2'000'000'000'000);
  EXPECT_THAT(f.err, Not(HasSubstr("--ram")));
}

TEST(LibraryFolders, NothingIsLoadedFromTheCurrentFolder) {
  if (!media_available()) GTEST_SKIP() << "built without FFmpeg: no library is loaded";
  const TempDir folder;
  const std::vector<std::uint8_t> pixels(3 * 8 * 8, 128);
  write_png(folder.path("a.png"), {.width = 8, .height = 8, .pixels = pixels});
  // The loader would stop at these: they are no libraries.
  for (const char* name : {"avutil", "avcodec", "avformat", "swscale"}) {
    for (int version = 5; version < 70; ++version) {
      folder.write(fmt::format("lib{}.so.{}", name, version), "planted");
    }
  }
  for (const char* path : {"", ":", ":/usr/lib", "/usr/lib:", ".", "lib:/usr/lib"}) {
    const Finished f =
        run_behind(fmt::format("cd {}; export LD_LIBRARY_PATH={};", folder.path(), path),
                   {"inspect", "a.png"});
    EXPECT_EQ(f.exit_code, 0) << path << ": " << f.err;
    EXPECT_THAT(f.err, Not(HasSubstr("planted")));
  }
}

}  // namespace
}  // namespace ballast::test
