// `ballast train --ranks N`: processes of this host that share the samples of each step.

#include <gmock/gmock.h>
#include <signal.h>

#include <filesystem>
#include <fstream>

#include "report/run_log.h"
#include "tests/e2e/background_process.h"
#include "tests/e2e/ballast_process.h"
#include "tests/support/tiny_training.h"
#include "tests/support/trained_run.h"
#include "train/checkpoint/checkpoint.h"
#include "train/run/run_folder.h"

namespace ballast::test {
namespace {

using support::difference;
using support::read_trace;
using support::RunTrace;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Ranks : public ::testing::Test {
 protected:
  Ranks() : training_(support::trainable_config(2)) {
    training_.add_clips(10, {4, 1, 8, 16}, "clip");
  }

  std::vector<std::string> command(const std::string& epochs, std::vector<std::string> flags) {
    std::vector<std::string> all = {"train", training_.write_config("epochs = " + epochs),
                                    "--device", "cpu"};
    all.insert(all.end(), flags.begin(), flags.end());
    return all;
  }
  std::string only_run() const {
    const auto runs = train::runs_in(training_.path("out"));
    return runs.size() == 1 ? training_.path("out/") + runs[0] : "";
  }
  // Of a run with these flags, which is removed.
  RunTrace trace(const std::string& epochs, const std::vector<std::string>& flags) {
    std::filesystem::remove_all(training_.path("out"));
    const Finished done = run_ballast(command(epochs, flags));
    EXPECT_EQ(done.exit_code, 0) << done.err;
    EXPECT_THAT(done.out, HasSubstr("finished after"));
    const std::string folder = only_run();
    EXPECT_NE(folder, "") << done.err;
    return folder.empty() ? RunTrace() : read_trace(folder);
  }
  std::size_t steps_logged() const {
    const std::string folder = only_run(), log = folder + "/" + std::string(kRunLogFile);
    if (folder.empty() || !std::filesystem::exists(log)) return 0;
    return read_run_log(log).steps.size();
  }
  // Processes whose parent this is.
  static std::vector<pid_t> children_of(pid_t parent) {
    std::vector<pid_t> all;
    std::ifstream list(fmt::format("/proc/{}/task/{}/children", static_cast<int>(parent),
                                   static_cast<int>(parent)));
    for (pid_t pid = 0; list >> pid;) all.push_back(pid);
    return all;
  }
  static bool is_there(pid_t pid) { return ::kill(pid, 0) == 0; }

  support::TinyTraining training_;
};

TEST_F(Ranks, TrainTheSameBitsAsOneWithTheirColumns) {
  const RunTrace alone = trace("2", {"--columns", "3", "--global-batch", "3"});
  ASSERT_EQ(alone.steps.size(), 6u);
  ASSERT_EQ(alone.files.size(), 2u);
  EXPECT_EQ(difference(alone, trace("2", {"--ranks", "3"})), "");
  EXPECT_EQ(difference(alone, trace("2", {"--ranks=2", "--columns", "3", "--global_batch=3"})), "");
}

TEST_F(Ranks, ArePlannedWithTheirExchangeAndTheirShareOfMemory) {
  const std::string config = training_.write_config("epochs = 1");
  const Finished done = run_ballast(
      {"plan", config, "--ranks", "2", "--ram", "400MB", "--device", "cpu", "--details"});
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_THAT(done.out, AllOf(HasSubstr("exchange between ranks"), HasSubstr("200.0 MB")));
}

TEST_F(Ranks, AKilledOneEndsAllAndTheRunResumes) {
  for (const std::size_t victim : {0u, 1u}) {
    std::filesystem::remove_all(training_.path("out"));
    BackgroundBallast process(command("100000\ncheckpoint_every_n_epochs = 1", {"--ranks", "2"}));
    ASSERT_TRUE(wait_until([&] { return steps_logged() >= 7; })) << process.err();
    const std::vector<pid_t> ranks = children_of(process.pid());
    ASSERT_EQ(ranks.size(), 2u);
    ::kill(ranks[victim], SIGKILL);
    EXPECT_EQ(process.wait(), 8) << process.err();
    EXPECT_THAT(process.err(), AllOf(HasSubstr("SIGKILL"), HasSubstr("--resume")));
    for (const pid_t pid : ranks) EXPECT_FALSE(is_there(pid));
    const std::string steps = std::to_string(steps_logged() + 3);
    const Finished resumed =
        run_ballast(command("100000", {"--ranks", "2", "--max_steps", steps, "--resume"}));
    EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
    const RunTrace killed = read_trace(only_run());
    EXPECT_EQ(
        difference(trace("100000", {"--columns", "2", "--global-batch", "2", "--max_steps", steps}),
                   killed),
        "");
  }
}

TEST_F(Ranks, AStopSavesOnceAndAnyNumberContinues) {
  BackgroundBallast process(command("100000", {"--ranks", "3"}));
  ASSERT_TRUE(wait_until([&] { return steps_logged() >= 3; })) << process.err();
  process.send(SIGTERM);
  EXPECT_EQ(process.wait(), 0) << process.err();
  EXPECT_THAT(process.out(), HasSubstr("stopped after "));
  std::string steps;
  for (const char* ranks : {"1", "2"}) {
    steps = std::to_string(steps_logged() + 2);
    const Finished resumed =
        run_ballast(command("100000", {"--ranks", ranks, "--resume", "--max_steps", steps}));
    EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  }
  const std::string folder = only_run();
  const std::string state = fmt::format("checkpoints/step-{:0>8}/state.safetensors", steps);
  RunTrace parts = read_trace(folder);
  const RunTrace alone =
      trace("100000", {"--columns", "3", "--global-batch", "3", "--max_steps", steps});
  EXPECT_EQ(alone.steps, parts.steps);
  EXPECT_EQ(alone.files.at(state), parts.files.at(state));
}

TEST_F(Ranks, ARefusalIsSaidByAllAndEndsWithItsCode) {
  const Finished done = run_ballast(command("1", {"--ranks", "2", "--ram", "4MB"}));
  EXPECT_EQ(done.exit_code, 3) << done.err;
  EXPECT_THAT(done.err, HasSubstr("does not fit"));
  EXPECT_TRUE(train::runs_in(training_.path("out")).empty());
}

TEST_F(Ranks, WhatTheyCannotDoYetIsSaid) {
  for (const auto& [flags, text] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--ranks", "2", "--columns", "1"}, "2 ranks for 1 column:"},
           {{"--ranks", "2", "--cache_only"}, "is not supported yet"}}) {
    const Finished done = run_ballast(command("1", flags));
    EXPECT_EQ(done.exit_code, 2) << done.err;
    EXPECT_THAT(done.err, HasSubstr(text));
  }
}

}  // namespace
}  // namespace ballast::test
