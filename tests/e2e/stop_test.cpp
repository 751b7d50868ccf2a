// Ways to end a run before its end, with nothing lost: signals, and files in its folder.

#include <gmock/gmock.h>
#include <pty.h>
#include <string.h>

#include <cstring>

#include "tests/e2e/background_process.h"
#include "tests/e2e/ballast_process.h"
#include "tests/support/tiny_training.h"
#include "tests/support/trained_run.h"
#include "train/checkpoint/checkpoint.h"
#include "train/run/run_folder.h"

namespace ballast::test {
namespace {

using ::testing::HasSubstr;

class Stop : public ::testing::Test {
 protected:
  Stop() : training_(support::trainable_config(1)) { training_.add_clips(4, {4, 1, 4, 4}); }

  std::vector<std::string> endless() {
    return {"train", training_.write_config("epochs = 100000"), "--threads", "1"};
  }
  // Of the only run; "" before it has one.
  std::string folder() const {
    const auto runs = train::runs_in(training_.path("out"));
    return runs.empty() ? "" : training_.path("out/") + runs[0];
  }
  std::size_t steps_logged() const {
    const std::string log = folder() + "/" + std::string(kRunLogFile);
    if (folder().empty() || !std::filesystem::exists(log)) return 0;
    return read_run_log(log).steps.size();
  }
  // The newest checkpoint is that of the last step in the log, and the report is there.
  void expect_everything_saved() const {
    const RunHistory h = read_run_log(folder() + "/" + std::string(kRunLogFile));
    const auto found = train::find_checkpoint(folder());
    ASSERT_TRUE(found.found);
    EXPECT_EQ(found.found->state.step, h.steps.back().step);
    EXPECT_EQ(h.events.back().event, "stopped");
    EXPECT_TRUE(std::filesystem::exists(folder() + "/report.html"));
  }

  support::TinyTraining training_;
};

TEST_F(Stop, BySignalFinishesTheStepAndSaves) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR2}) {
    std::filesystem::remove_all(training_.path("out"));
    BackgroundBallast process(endless());
    ASSERT_TRUE(wait_until([&] { return steps_logged() >= 3; })) << process.err();
    process.send(signal);
    EXPECT_EQ(process.wait(), 0) << process.err();
    EXPECT_THAT(process.out(), HasSubstr("stopped after "));
    EXPECT_THAT(process.err(), HasSubstr("stopping after this step, then saving"));
    expect_everything_saved();
    const Finished doctor = run_ballast({"doctor", folder(), "--no-disk-trial"});
    EXPECT_THAT(doctor.out, HasSubstr("asked to stop by SIG" + std::string(sigabbrev_np(signal))));
  }
}

TEST_F(Stop, ByAClosedTerminalSavesEverything) {
  int master = -1;
  const auto arguments = endless();
  const pid_t child = ::forkpty(&master, nullptr, nullptr, nullptr);
  if (child < 0) GTEST_SKIP() << "no pseudo-terminal here: " << std::strerror(errno);
  if (child == 0) {
    std::vector<char*> argv = {const_cast<char*>(BALLAST_BINARY)};
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    ::execv(BALLAST_BINARY, argv.data());
    ::_exit(127);
  }
  ::fcntl(master, F_SETFL, O_NONBLOCK);
  ASSERT_TRUE(wait_until([&] {
    char shown[4096];
    while (::read(master, shown, sizeof shown) > 0) continue;  // or the terminal fills up
    return steps_logged() >= 3;
  }));
  ::close(master);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  expect_everything_saved();
}

TEST_F(Stop, Usr1SavesAndContinues) {
  BackgroundBallast process(endless());
  ASSERT_TRUE(wait_until([&] { return steps_logged() >= 2; })) << process.err();
  process.send(SIGUSR1);
  ASSERT_TRUE(wait_until([&] { return train::find_checkpoint(folder()).found.has_value(); }));
  const std::size_t then = steps_logged();
  ASSERT_TRUE(wait_until([&] { return steps_logged() >= then + 3; })) << process.err();
  EXPECT_FALSE(process.finished()) << process.err();
}

TEST_F(Stop, BySignalCanBeResumed) {
  const auto arguments = [&](const std::string& output, bool resume) {
    std::vector<std::string> a = {"train",        training_.write_config("epochs = 20"),
                                  "--output_dir", training_.path(output),
                                  "--threads",    "1"};
    if (resume) a.push_back("--resume");
    return a;
  };
  ASSERT_EQ(run_ballast(arguments("whole", false)).exit_code, 0);
  {
    BackgroundBallast process(arguments("out", false));
    ASSERT_TRUE(wait_until([&] { return steps_logged() >= 5; })) << process.err();
    process.send(SIGTERM);
    ASSERT_EQ(process.wait(), 0) << process.err();
  }
  const Finished second = run_ballast(arguments("out", true));
  ASSERT_EQ(second.exit_code, 0) << second.err;
  const std::string whole = training_.path("whole");
  EXPECT_EQ(support::difference(support::read_trace(whole + "/" + train::runs_in(whole).at(0)),
                                support::read_trace(folder())),
            "");
}

TEST_F(Stop, BySecondSignalIsImmediate) {
  // A step that lasts: 16 samples of 512 tokens.
  training_.add_clips(16, {4, 2, 32, 32}, "long", "long_clips");
  const std::string config =
      training_.write_config("epochs = 10\ngradient_accumulation_steps = 16");
  std::string text = read_whole(config);
  const std::string clips = training_.path("clips");
  text.replace(text.find(clips), clips.size(), training_.path("long_clips"));
  std::ofstream(config) << text;
  BackgroundBallast process({"train", config, "--threads", "1"});
  // The log is there when the loop begins.
  ASSERT_TRUE(wait_until([&] {
    return !folder().empty() && std::filesystem::exists(folder() + "/" + std::string(kRunLogFile));
  }));
  process.send(SIGTERM);
  ASSERT_TRUE(wait_until(
      [&] { return process.err().find("stopping after this step") != std::string::npos; }));
  // The step stands still while the test waits until the second signal is one of its own.
  process.send(SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  process.send(SIGTERM);
  process.send(SIGCONT);
  EXPECT_EQ(process.wait(), 130) << process.err();
  EXPECT_THAT(process.err(), HasSubstr("quitting at once, nothing saved"));
  EXPECT_FALSE(train::find_checkpoint(folder()).found);
}

TEST_F(Stop, ByFileSavesAndQuits) {
  BackgroundBallast process(endless());
  ASSERT_TRUE(wait_until([&] { return steps_logged() >= 2; })) << process.err();
  std::ofstream(folder() + "/save").close();
  ASSERT_TRUE(wait_until([&] { return !std::filesystem::exists(folder() + "/save"); }));
  ASSERT_TRUE(wait_until([&] { return train::find_checkpoint(folder()).found.has_value(); }));
  EXPECT_FALSE(process.finished()) << "`save` alone does not end it";
  std::ofstream(folder() + "/save_quit").close();
  EXPECT_EQ(process.wait(), 0) << process.err();
  EXPECT_FALSE(std::filesystem::exists(folder() + "/save_quit"));
  expect_everything_saved();
}

}  // namespace
}  // namespace ballast::test
