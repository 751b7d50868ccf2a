#include "train/stop_signal.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/support/child_process.h"

namespace ballast::train {
namespace {

using ballast::test::ChildProcess;
using namespace std::chrono_literals;

// A loop that saves (exit code 42) when it is asked to stop; the step after that request takes
// `last_step`. Tells by a byte that it runs, and by another that it was asked.
class Loop {
 public:
  explicit Loop(std::chrono::milliseconds last_step)
      : child_([&] {
          const StopSignal stop;
          tell();
          while (!stop.requested()) std::this_thread::sleep_for(1ms);
          tell();
          std::this_thread::sleep_for(last_step);
          return 42;
        }) {
    hear();
  }
  ~Loop() {
    ::close(pipe_.fds[0]);
    ::close(pipe_.fds[1]);
  }

  void hear() {
    char c = 0;
    ASSERT_EQ(::read(pipe_.fds[0], &c, 1), 1);
  }
  ChildProcess& child() { return child_; }

 private:
  struct Pipe {
    Pipe() {
      if (::pipe(fds) != 0) throw std::runtime_error("pipe");
    }
    int fds[2];
  };
  void tell() const {
    if (::write(pipe_.fds[1], "x", 1) != 1) ::_exit(98);
  }

  Pipe pipe_;
  ChildProcess child_;
};

TEST(StopSignal, OneLetsTheLoopFinishAndSave) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGALRM, SIGUSR2, SIGXCPU}) {
    Loop loop(50ms);
    loop.child().send(signal);
    EXPECT_EQ(loop.child().wait(), 42);
  }
}

TEST(StopSignal, ASecondOneQuitsAtOnce) {
  for (const int second : {SIGINT, SIGTERM}) {
    Loop loop(30s);
    loop.child().send(SIGTERM);
    loop.hear();
    std::this_thread::sleep_for(50ms);
    loop.child().send(second);
    EXPECT_EQ(loop.child().wait(), 130);
  }
}

// A shell and the kernel both send it when a terminal is closed, at their own times.
TEST(StopSignal, ASecondHangupDoesNotQuit) {
  Loop loop(200ms);
  loop.child().send(SIGHUP);
  loop.hear();
  std::this_thread::sleep_for(50ms);
  loop.child().send(SIGHUP);
  EXPECT_EQ(loop.child().wait(), 42);
}

TEST(StopSignal, AHangupThatIsIgnoredStaysIgnored) {  // nohup
  ChildProcess child([] {
    ::signal(SIGHUP, SIG_IGN);
    const StopSignal stop;
    ::raise(SIGHUP);
    return stop.requested() ? 1 : 42;
  });
  EXPECT_EQ(child.wait(), 42);
}

TEST(StopSignal, Usr1AsksForASaveOnceAndNotForAnEnd) {
  ChildProcess child([] {
    StopSignal stop;
    if (stop.take_save_request()) return 1;
    ::raise(SIGUSR1);
    if (stop.requested() || !stop.take_save_request()) return 2;
    return stop.take_save_request() ? 3 : 42;
  });
  EXPECT_EQ(child.wait(), 42);
}

TEST(StopSignal, ADoubledOneCountsOnce) {
  Loop loop(100ms);
  // Both while it stands still: they reach it together however busy the machine is.
  loop.child().send(SIGSTOP);
  ASSERT_EQ(::waitpid(loop.child().pid(), nullptr, WUNTRACED), loop.child().pid());
  loop.child().send(SIGTERM);
  loop.child().send(SIGINT);  // another number: the kernel does not merge the two
  loop.child().send(SIGCONT);
  EXPECT_EQ(loop.child().wait(), 42);
}

TEST(StopSignal, HandlersComeBackAtTheEnd) {
  static volatile sig_atomic_t seen = 0;
  struct sigaction mine {
  }, before{};
  mine.sa_handler = [](int) { seen = seen + 1; };
  ASSERT_EQ(::sigaction(SIGTERM, &mine, &before), 0);
  {
    const StopSignal stop;
    EXPECT_FALSE(stop.requested());
    EXPECT_STREQ(stop.name(), "");
    ::raise(SIGTERM);
    EXPECT_EQ(stop.signal(), SIGTERM);
    EXPECT_STREQ(stop.name(), "SIGTERM");
    EXPECT_EQ(seen, 0);
  }
  ::raise(SIGTERM);
  EXPECT_EQ(seen, 1);
  {
    const StopSignal stop;  // starts anew
    EXPECT_FALSE(stop.requested());
  }
  ::sigaction(SIGTERM, &before, nullptr);
}

}  // namespace
}  // namespace ballast::train
