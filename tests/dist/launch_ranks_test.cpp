#include "dist/launch_ranks.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <sys/resource.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include "core/to_size.h"
#include "dist/host_ranks.h"
#include "dist/rank_environment.h"
#include "tests/support/child_process.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wait_until.h"

namespace ballast::launch_ranks_test {
namespace {

using test::ChildProcess;
using test::wait_until;
using testing::AllOf;
using testing::HasSubstr;

constexpr std::chrono::milliseconds kShort{200};
constexpr int kWrong = 77, kSkipped = 96;
constexpr int kLost = static_cast<int>(ErrorCode::lost);

// Ranks that are a shell each, with $BALLAST_RANK. What they do without exchanges.
LaunchOptions shell(int ranks, const std::string& script) {
  return {.ranks = ranks, .arguments = {"-c", script}, .program = "/bin/sh", .patience = kShort};
}

// Ranks that run the calling test again: body(place) gives each one's exit code.
int launch_this_test(int ranks, const std::function<int(const RankPlace&)>& body) {
  if (const auto place = this_rank()) {
    try {
      ::_exit(body(*place));
    } catch (const Error& e) {
      ::_exit(static_cast<int>(e.code()));
    }
  }
  // This process runs a part of all tests, the ranks this one.
  ::unsetenv("GTEST_TOTAL_SHARDS");
  ::unsetenv("GTEST_SHARD_INDEX");
  const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
  const std::string name = std::string(test->test_suite_name()) + "." + test->name();
  return launch_ranks({.ranks = ranks,
                       .arguments = {"--gtest_brief=1", "--gtest_filter=" + name},
                       .patience = std::chrono::seconds(20)});
}

// A launcher in a process of its own, which gives the code of the error that it fails with.
int launch_in_child(const LaunchOptions& options) {
  try {
    return launch_ranks(options);
  } catch (const Error& e) {
    return static_cast<int>(e.code());
  }
}

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

int lines_of(const std::string& path) {
  const std::string text = text_of(path);
  return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

// Ranks write their process ids into files of a folder.
class LaunchRanksProcesses : public testing::Test {
 protected:
  std::string said(int rank) const { return dir_.path(std::to_string(rank)); }
  // Of a rank, which does `then` when it has said so.
  std::string saying(const std::string& then) const {
    return "echo $$ > " + dir_.path("") + "/$BALLAST_RANK; " + then;
  }
  bool all_said(int ranks) const {
    return wait_until([&] {
      for (int r = 0; r < ranks; ++r) {
        if (lines_of(said(r)) == 0) return false;
      }
      return true;
    });
  }
  pid_t process(int rank) const { return std::stoi(text_of(said(rank))); }
  // Gone, or a zombie that whoever adopted it has not collected.
  bool gone(int rank) const {
    const std::string stat = text_of("/proc/" + std::to_string(process(rank)) + "/stat");
    return stat.empty() || stat.substr(stat.rfind(')') + 2).starts_with('Z');
  }
  bool all_gone(int ranks) const {
    return wait_until([&] {
      for (int r = 0; r < ranks; ++r) {
        if (!gone(r)) return false;
      }
      return true;
    });
  }

  test::TempDir dir_;
};

TEST(LaunchRanks, ExchangeAndEndInOrder) {
  EXPECT_EQ(launch_this_test(3,
                             [](const RankPlace& place) {
                               HostRanks ranks(place.memory_fd, place.token, place.local_rank,
                                               place.local_ranks);
                               const auto all = ranks.join("all", place.rank, place.ranks);
                               std::array<std::byte, 3> bytes{};
                               bytes[to_size(place.rank)] = static_cast<std::byte>(place.rank + 1);
                               const TensorView v(bytes.data(), DType::u8, Shape{3, 1});
                               all->all_gather(v.rows(place.rank, 1), v, {});
                               for (int r = 0; r < 3; ++r) {
                                 if (bytes[to_size(r)] != static_cast<std::byte>(r + 1))
                                   return kWrong;
                               }
                               return 0;
                             }),
            0);
}

TEST(LaunchRanks, ARankThatEndsWhileOthersNeedItEndsAll) {
  const auto launch = [] {
    return launch_this_test(3, [](const RankPlace& place) {
      HostRanks ranks(place.memory_fd, place.token, place.local_rank, place.local_ranks);
      const auto all = ranks.join("all", place.rank, place.ranks);
      all->barrier({});
      if (place.rank == 1) ::_exit(0);  // no destructor says so
      all->barrier({});
      return 0;
    });
  };
  EXPECT_FAILS(launch(), ErrorCode::lost,
               "rank 1 ended while other ranks needed it, and the other 2 ranks stopped");
}

// Two wait for the third, which takes its time to end.
TEST(LaunchRanks, TheCauseIsTheRankThatCouldNotContinue) {
  EXPECT_EQ(launch_this_test(3,
                             [](const RankPlace& place) {
                               HostRanks ranks(place.memory_fd, place.token, place.local_rank,
                                               place.local_ranks);
                               const auto all = ranks.join("all", place.rank, place.ranks);
                               if (place.rank != 2) all->barrier({});
                               all->abort();
                               std::this_thread::sleep_for(kShort);
                               return 4;
                             }),
            4);
}

TEST(LaunchRanks, AKilledRankIsNamedWithItsSignal) {
  const auto launch = [] {
    return launch_this_test(2, [](const RankPlace& place) {
      HostRanks ranks(place.memory_fd, place.token, place.local_rank, place.local_ranks);
      const auto all = ranks.join("all", place.rank, place.ranks);
      if (place.rank == 1) ::raise(SIGKILL);
      const auto error = test::error_of([&] { all->barrier({}); });
      // Who tells of it first is the launcher, or a look at its process.
      const bool named = error && std::string(error->what()).find("rank 1") != std::string::npos;
      return named ? kLost : kWrong;
    });
  };
  EXPECT_FAILS(launch(), ErrorCode::lost,
               "rank 1 was killed by SIGKILL, and the other rank stopped");
}

TEST(LaunchRanks, TheExitCodeIsThatOfTheRankThatFailed) {
  EXPECT_EQ(launch_ranks(shell(3, "[ $BALLAST_RANK = 2 ] && exit 4; exec sleep 100")), 4);
  EXPECT_EQ(launch_ranks(shell(3, "exit 3")), 3);
  EXPECT_EQ(launch_ranks(shell(3, "exit 0")), 0);
  EXPECT_EQ(launch_ranks(shell(1, "exit 6")), 6);
}

TEST(LaunchRanks, ASignalThatNobodySentOnIsALoss) {
  const std::optional<Error> error = test::error_of(
      [] { launch_ranks(shell(2, "[ $BALLAST_RANK = 1 ] && kill -SEGV $$; exec sleep 100")); });
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::lost);
  EXPECT_THAT(error->what(), AllOf(HasSubstr("rank 1 was killed by SIGSEGV"),
                                   HasSubstr(", and the other rank stopped")));
  ASSERT_FALSE(error->advice().empty());
  EXPECT_THAT(error->advice()[0].change, HasSubstr("--resume"));
}

TEST(LaunchRanks, HaveTheStandardFilesOfRank0Only) {
  const test::TempDir dir;
  const std::string out = dir.path("out"), in = dir.path("in");
  std::ofstream(in) << "for rank 0\n";
  std::fflush(stdout);  // else the child may write there what this process has not written yet
  ChildProcess child([&] {
    const FileDescriptor to(::open(out.c_str(), O_WRONLY | O_CREAT, 0600));
    const FileDescriptor from(::open(in.c_str(), O_RDONLY));
    if (::dup2(to.get(), 1) < 0 || ::dup2(from.get(), 0) < 0) return 99;
    return launch_ranks(shell(3, "cat; echo rank $BALLAST_RANK of $BALLAST_RANKS"));
  });
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(text_of(out), "for rank 0\nrank 0 of 3\n");
}

TEST(LaunchRanks, ShareTheProcessorsThatTheLauncherMayUse) {
  cpu_set_t own;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(own), &own), 0);
  if (CPU_COUNT(&own) < 2 && !this_rank()) GTEST_SKIP() << "one processor";
  EXPECT_EQ(launch_this_test(2,
                             [](const RankPlace& place) {
                               cpu_set_t mine;
                               CPU_ZERO(&mine);
                               ::sched_getaffinity(0, sizeof(mine), &mine);
                               HostRanks ranks(place.memory_fd, place.token, place.rank, 2);
                               const auto all = ranks.join("all", place.rank, 2);
                               std::array<cpu_set_t, 2> sets{};
                               sets[to_size(place.rank)] = mine;
                               const TensorView v(reinterpret_cast<std::byte*>(sets.data()),
                                                  DType::u8, Shape{2, sizeof(mine)});
                               all->all_gather(v.rows(place.rank, 1), v, {});
                               cpu_set_t both;
                               CPU_AND(&both, &sets[0], &sets[1]);
                               return CPU_COUNT(&mine) > 0 && CPU_COUNT(&both) == 0 ? 0 : kWrong;
                             }),
            0);
}

TEST(LaunchRanks, ThatCannotBeStartedAreNamed) {
  LaunchOptions options = shell(2, "exec sleep 100");
  options.program = "/nowhere/ballast";
  EXPECT_FAILS(launch_ranks(options), ErrorCode::device,
               "rank 0 could not be started: /nowhere/ballast: No such file or directory");
}

// Root may start as many as it likes, so it becomes somebody else, who has room for a rank or two.
// Others have processes already and room for none.
TEST(LaunchRanks, BeyondALimitOfProcessesEndWithItsName) {
  ChildProcess child([&] {
    const bool root = ::geteuid() == 0;
    const uid_t user = 20000 + static_cast<uid_t>(::getpid() % 40000);
    if (root && ::setresuid(user, user, user) != 0) return kSkipped;
    const rlim_t most = root ? 3 : 0;
    const rlimit limit{.rlim_cur = most, .rlim_max = most};
    if (::setrlimit(RLIMIT_NPROC, &limit) != 0) return kSkipped;
    const auto error = test::error_of([] { launch_ranks(shell(4, "exec sleep 100")); });
    if (!error) return kWrong;
    const std::string text = error->what();
    const bool named = text.find("start a process for rank ") != std::string::npos &&
                       text.find("ulimit -u (") != std::string::npos;
    const bool nobody_left = ::waitpid(-1, nullptr, 0) < 0 && errno == ECHILD;
    if (!named) std::fprintf(stderr, "%s\n", text.c_str());
    return named && nobody_left ? static_cast<int>(error->code()) : kWrong;
  });
  const int code = child.wait();
  if (code == kSkipped) GTEST_SKIP() << "this root may not become another user";
  EXPECT_EQ(code, static_cast<int>(ErrorCode::device));
}

TEST_F(LaunchRanksProcesses, WhoDoesNotEndIsKilled) {
  // Rank 1 ends when all are there.
  const std::string last =
      "while [ ! -s " + said(0) + " ] || [ ! -s " + said(2) + " ]; do sleep 0.01; done";
  ChildProcess child([&] {
    return launch_in_child(
        shell(3, "trap '' TERM; " + saying("[ $BALLAST_RANK = 1 ] && { " + last +
                                           "; exit 6; }; while :; do sleep 0.01; done")));
  });
  EXPECT_EQ(child.wait(), 6);
  ASSERT_TRUE(all_said(3));
  for (int r = 0; r < 3; ++r) EXPECT_TRUE(gone(r)) << r;
}

TEST_F(LaunchRanksProcesses, SignalsArePassedOnOnceToEach) {
  // A line for each signal; the sleep of a shell ends with its signals.
  const std::string script = saying(
      "n=0; trap 'echo usr1 >> $0.$BALLAST_RANK' USR1; "
      "trap 'echo term >> $0.$BALLAST_RANK; exit 0' TERM; "
      "echo ready >> $0.$BALLAST_RANK; while :; do sleep 0.01; done");
  LaunchOptions options = shell(2, script);
  const std::string marks = dir_.path("marks");
  options.arguments.push_back(marks);  // $0
  ChildProcess child([&] { return launch_in_child(options); });
  const auto both_have = [&](int lines) {
    return wait_until(
        [&] { return lines_of(marks + ".0") >= lines && lines_of(marks + ".1") >= lines; });
  };
  ASSERT_TRUE(both_have(1));
  child.send(SIGUSR1);
  ASSERT_TRUE(both_have(2));
  child.send(SIGUSR1);
  ASSERT_TRUE(both_have(3));
  child.send(SIGTERM);
  EXPECT_EQ(child.wait(), 0);
  for (const char* rank : {".0", ".1"}) {
    EXPECT_EQ(text_of(marks + rank), "ready\nusr1\nusr1\nterm\n");
  }
}

TEST_F(LaunchRanksProcesses, ASignalThatEndsThemAllIsTheEndOfTheLauncher) {
  ChildProcess child([&] { return launch_in_child(shell(2, saying("exec sleep 100"))); });
  ASSERT_TRUE(all_said(2));
  child.send(SIGTERM);
  EXPECT_EQ(child.wait(), 128 + SIGTERM);
  EXPECT_TRUE(all_gone(2));
}

TEST_F(LaunchRanksProcesses, AStoppedRankHearsOfTheEndToo) {
  ChildProcess child([&] {
    return launch_in_child(
        shell(3, "trap 'exit 0' TERM; " + saying("[ $BALLAST_RANK = 1 ] && kill -STOP $$; "
                                                 "while :; do sleep 0.01; done")));
  });
  ASSERT_TRUE(all_said(3));
  ASSERT_TRUE(wait_until([&] {
    const std::string stat = text_of("/proc/" + std::to_string(process(1)) + "/stat");
    return !stat.empty() && stat.substr(stat.rfind(')') + 2).starts_with('T');
  }));
  child.send(SIGTERM);
  EXPECT_EQ(child.wait(), 0);
  EXPECT_TRUE(all_gone(3));
}

TEST_F(LaunchRanksProcesses, ASecondInterruptKillsAtOnce) {
  ChildProcess child([&] {
    return launch_in_child(shell(2, "trap 'echo heard >> " + dir_.path("heard") + "' INT; " +
                                        saying("while :; do sleep 0.01; done")));
  });
  ASSERT_TRUE(all_said(2));
  child.send(SIGINT);
  ASSERT_TRUE(wait_until([&] { return lines_of(dir_.path("heard")) == 2; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(40));  // two requests, not one
  child.send(SIGINT);
  EXPECT_EQ(child.wait(), 130);
  EXPECT_TRUE(all_gone(2));
  EXPECT_EQ(lines_of(dir_.path("heard")), 2);
}

TEST_F(LaunchRanksProcesses, AKilledLauncherLeavesNoProcess) {
  ChildProcess child([&] { return launch_in_child(shell(3, saying("exec sleep 100"))); });
  ASSERT_TRUE(all_said(3));
  child.send(SIGKILL);
  EXPECT_EQ(child.wait(), -SIGKILL);
  EXPECT_TRUE(all_gone(3));
}

// Sets the variables of a rank for one test.
class RankEnvironment : public testing::Test {
 protected:
  ~RankEnvironment() override {
    for (const auto& [name, value] : environment_of({})) ::unsetenv(name.c_str());
  }
  static void set(const RankPlace& place) {
    for (const auto& [name, value] : environment_of(place)) {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
  }
  static RankPlace second_of_four(int fd) {
    return {.rank = 1,
            .ranks = 4,
            .local_rank = 1,
            .local_ranks = 4,
            .memory_fd = fd,
            .token = "0123456789abcdef0123456789abcdef"};
  }
};

TEST_F(RankEnvironment, IsReadAndTheMemoryNotInherited) {
  EXPECT_FALSE(this_rank().has_value());
  const FileDescriptor file(::open("/dev/null", O_RDONLY));
  set(second_of_four(file.get()));
  const auto place = this_rank();
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(place->rank, 1);
  EXPECT_EQ(place->ranks, 4);
  EXPECT_EQ(place->local_rank, 1);
  EXPECT_EQ(place->local_ranks, 4);
  EXPECT_EQ(place->memory_fd, file.get());
  EXPECT_EQ(place->token, "0123456789abcdef0123456789abcdef");
  EXPECT_EQ(::fcntl(file.get(), F_GETFD), FD_CLOEXEC);
}

TEST_F(RankEnvironment, ThatDoesNotFitTogetherIsShown) {
  const FileDescriptor file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const auto refused = [&](const char* name, const char* value, std::string_view text) {
    set(second_of_four(file.get()));
    if (value == nullptr) {
      ::unsetenv(name);
    } else {
      ::setenv(name, value, 1);
    }
    EXPECT_FAILS(this_rank(), ErrorCode::usage, std::string(text));
  };
  refused("BALLAST_RANKS", nullptr,
          "some variables are missing (BALLAST_RANK = 1, BALLAST_RANKS "
          "not set, BALLAST_LOCAL_RANK = 1, ");
  refused("BALLAST_RANK", "4", "the numbers do not fit together");
  refused("BALLAST_LOCAL_RANK", "2", "the numbers do not fit together");
  refused("BALLAST_LOCAL_RANKS", "5", "the numbers do not fit together");
  refused("BALLAST_RANKS", "two", "BALLAST_RANKS is no number");
  refused("BALLAST_RANK", "-1", "BALLAST_RANK is no number");
  refused("BALLAST_RANK", "1 ", "BALLAST_RANK is no number");
  refused("BALLAST_RANK_MEMORY", "99999", "BALLAST_RANK_MEMORY names no open file");
  refused("BALLAST_JOB_TOKEN", "secret", "BALLAST_JOB_TOKEN is no token");
}

}  // namespace
}  // namespace ballast::launch_ranks_test
