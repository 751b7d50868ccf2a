// What `ballast train --ranks N` does when a rank, or the launcher, cannot go on.

#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "dist/host_memory.h"
#include "dist/rank_environment.h"
#include "report/run_log.h"
#include "tests/e2e/background_process.h"
#include "tests/e2e/ballast_process.h"
#include "tests/support/child_process.h"
#include "tests/support/tiny_training.h"
#include "train/run/run_folder.h"

namespace ballast::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class RankFailure : public ::testing::Test {
 protected:
  RankFailure() : training_(support::trainable_config(2)) {
    training_.add_clips(10, {4, 1, 8, 16}, "clip");
    ::setenv("BALLAST_HANG_SECONDS", "2", 1);
  }
  ~RankFailure() override { ::unsetenv("BALLAST_HANG_SECONDS"); }

  std::vector<std::string> endless(const std::string& ranks) {
    const std::string epochs = "epochs = 100000\ncheckpoint_every_n_epochs = 1";
    return {"train", training_.write_config(epochs), "--device", "cpu", "--ranks", ranks};
  }
  std::string only_run() const {
    const auto runs = train::runs_in(training_.path("out"));
    return runs.size() == 1 ? training_.path("out/") + runs[0] : "";
  }
  bool has_steps(std::size_t count) const {
    return wait_until([&] {
      const std::string folder = only_run(), log = folder + "/" + std::string(kRunLogFile);
      return !folder.empty() && std::filesystem::exists(log) &&
             read_run_log(log).steps.size() >= count;
    });
  }
  static std::vector<pid_t> children_of(pid_t parent) {
    std::vector<pid_t> all;
    std::ifstream list(fmt::format("/proc/{}/task/{}/children", static_cast<int>(parent),
                                   static_cast<int>(parent)));
    for (pid_t pid = 0; list >> pid;) all.push_back(pid);
    return all;
  }
  // 'R', 'S', 'T', ...; 0: gone, or a zombie that whoever adopted it has not collected.
  static char state_of(pid_t pid) {
    const std::string stat = read_whole(fmt::format("/proc/{}/stat", static_cast<int>(pid)));
    const std::size_t at = stat.rfind(')');
    if (at == std::string::npos || at + 2 >= stat.size() || stat[at + 2] == 'Z') return 0;
    return stat[at + 2];
  }
  static bool all_are(const std::vector<pid_t>& pids, char state) {
    return wait_until([&] {
      return std::ranges::all_of(pids, [&](pid_t pid) { return state_of(pid) == state; });
    });
  }
  static std::size_t count_of(const std::string& text, std::string_view part) {
    std::size_t count = 0;
    for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
    return count;
  }

  support::TinyTraining training_;
};

TEST_F(RankFailure, AKilledRankIsReportedOnceWithWhatIsKnown) {
  for (const std::size_t victim : {0u, 2u}) {
    std::filesystem::remove_all(training_.path("out"));
    BackgroundBallast process(endless("3"));
    ASSERT_TRUE(has_steps(7)) << process.err();
    const std::vector<pid_t> ranks = children_of(process.pid());
    ASSERT_EQ(ranks.size(), 3u);
    ::kill(ranks[victim], SIGKILL);
    EXPECT_EQ(process.wait(), 8) << process.err();
    const std::string err = process.err();
    EXPECT_EQ(count_of(err, fmt::format("ballast: rank {} was killed by SIGKILL", victim)), 1u)
        << err;
    EXPECT_EQ(count_of(err, "what would help:"), 1u) << err;
    EXPECT_EQ(count_of(err, "stopped: rank"), 1u) << "the other rank says one line: " << err;
    EXPECT_THAT(err, AllOf(HasSubstr("2 ranks stopped"), HasSubstr("newest whole checkpoint: step"),
                           HasSubstr("--resume"), HasSubstr("ballast doctor "),
                           HasSubstr("planned    allowed     rank")));
    EXPECT_TRUE(all_are(ranks, 0));
    const Finished doctor = run_ballast({"doctor", only_run(), "--no-disk-trial"});
    EXPECT_EQ(doctor.exit_code, 0) << doctor.err;
    EXPECT_THAT(doctor.out, AllOf(HasSubstr("ranks, by the times of their last words"),
                                  HasSubstr("died, step"), HasSubstr("failed, step")));
  }
}

TEST_F(RankFailure, AStoppedRankIsAHangAndDoesNotStay) {
  for (const std::size_t victim : {0u, 1u}) {
    std::filesystem::remove_all(training_.path("out"));
    BackgroundBallast process(endless("2"));
    ASSERT_TRUE(has_steps(3)) << process.err();
    const std::vector<pid_t> ranks = children_of(process.pid());
    ASSERT_EQ(ranks.size(), 2u);
    ::kill(ranks[victim], SIGSTOP);
    EXPECT_EQ(process.wait(), 8) << process.err();
    EXPECT_THAT(process.err(), AllOf(HasSubstr(fmt::format("ballast: rank {} hangs", victim)),
                                     HasSubstr("it is stopped (SIGSTOP, or a debugger)")));
    EXPECT_TRUE(all_are(ranks, 0));
  }
}

TEST_F(RankFailure, AKilledLauncherLeavesNoProcessEvenAStoppedOne) {
  BackgroundBallast process(endless("2"));
  ASSERT_TRUE(has_steps(1)) << process.err();
  const std::vector<pid_t> ranks = children_of(process.pid());
  ASSERT_EQ(ranks.size(), 2u);
  ::kill(ranks[1], SIGSTOP);
  ASSERT_TRUE(all_are({ranks[1]}, 'T'));
  process.send(SIGKILL);
  EXPECT_EQ(process.wait(), 128 + SIGKILL);
  EXPECT_TRUE(all_are(ranks, 0));
}

// As a shell with job control has it: a process group of its own.
TEST_F(RankFailure, CtrlZStopsAllAndTheyContinue) {
  BackgroundBallast process(endless("2"), true);
  ASSERT_TRUE(has_steps(1)) << process.err();
  std::vector<pid_t> all = children_of(process.pid());
  ASSERT_EQ(all.size(), 2u);
  all.push_back(process.pid());
  process.send(SIGTSTP);
  ASSERT_TRUE(all_are(all, 'T'));
  process.send(SIGCONT);
  ASSERT_TRUE(wait_until(
      [&] { return std::ranges::none_of(all, [](pid_t pid) { return state_of(pid) == 'T'; }); }));
  process.send(SIGTERM);
  EXPECT_EQ(process.wait(), 0) << process.err();
  EXPECT_THAT(process.out(), HasSubstr("stopped after "));
}

// This test is the launcher: two ranks that were given different files.
TEST_F(RankFailure, RanksWithOtherFilesEndBeforeTheyReadWeights) {
  HostMemory memory(2);
  const std::string config = training_.write_config("epochs = 1");
  const std::string other = training_.path("other.toml");
  std::ofstream(other) << read_whole(config) << "";
  const auto rank = [&](int r, const std::vector<std::string>& flags) {
    return std::make_unique<ChildProcess>([&memory, r, flags] {
      for (const auto& [name, value] : environment_of({.rank = r,
                                       .ranks = 2,
                                       .local_rank = r,
                                       .local_ranks = 2,
                                       .memory_fd = memory.fd(),
                                       .token = memory.token()})) {
        ::setenv(name.c_str(), value.c_str(), 1);
      }
      ::fcntl(memory.fd(), F_SETFD, 0);
      std::vector<char*> argv = {const_cast<char*>(BALLAST_BINARY)};
      for (const std::string& flag : flags) argv.push_back(const_cast<char*>(flag.c_str()));
      argv.push_back(nullptr);
      ::execv(BALLAST_BINARY, argv.data());
      return 127;
    });
  };
  const std::string err = training_.path("err");
  const int before = ::dup(STDERR_FILENO);
  ASSERT_GE(::dup2(::open(err.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600), STDERR_FILENO), 0);
  const auto first = rank(0, {"train", config, "--device", "cpu"});
  const auto second = rank(1, {"train", other, "--device", "cpu", "--max_steps", "3"});
  EXPECT_EQ(first->wait(), 4);
  EXPECT_EQ(second->wait(), 4);
  ::dup2(before, STDERR_FILENO);
  ::close(before);
  EXPECT_THAT(read_whole(err),
              AllOf(HasSubstr("the ranks of this job would not train the same:"),
                    HasSubstr("rank 0 "), HasSubstr("rank 1 "), Not(HasSubstr("model file"))));
  EXPECT_EQ(count_of(read_whole(err), "would not train the same"), 1u) << read_whole(err);
  EXPECT_TRUE(train::runs_in(training_.path("out")).empty());
}

}  // namespace
}  // namespace ballast::test
