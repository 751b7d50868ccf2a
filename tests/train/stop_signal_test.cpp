#include "train/stop_signal.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "tests/support/child_process.h"

namespace ballast::train {
namespace {

using ballast::test::ChildProcess;
using namespace std::chrono_literals;

// Each signal comes so many milliseconds after the one before, however busy the machine is.
template <int kMilliseconds>
std::chrono::steady_clock::time_point apart() {
  static std::atomic<int> passed{0};
  return std::chrono::steady_clock::time_point(std::chrono::milliseconds(passed += kMilliseconds));
}

// A loop that saves (exit code 42) when it is asked to stop, after a step that lasts until the test
// ends it. Tells by a byte that it runs, and by another that it was asked.
class Loop {
 public:
  explicit Loop(Clock now)
      : child_([&] {
          const StopSignal stop(nullptr, now);
          told_.write();
          while (!stop.requested()) std::this_thread::sleep_for(1ms);
          told_.write();
          end_step_.read();
          return 42;
        }) {
    hear();
  }

  void hear() { told_.read(); }
  void end_step() { end_step_.write(); }  // signals that were sent before it come before it
  ChildProcess& child() { return child_; }

 private:
  class Pipe {
   public:
    Pipe() {
      if (::pipe(fds_) != 0) throw std::runtime_error("pipe");
    }
    Pipe(const Pipe&) = delete;
    ~Pipe() {
      ::close(fds_[0]);
      ::close(fds_[1]);
    }
    void write() const {
      if (::write(fds_[1], "x", 1) != 1) throw std::runtime_error("write to a pipe");
    }
    void read() const {
      char c = 0;
      if (::read(fds_[0], &c, 1) != 1) throw std::runtime_error("read from a pipe");
    }

   private:
    int fds_[2];
  };

  Pipe told_, end_step_;
  ChildProcess child_;
};

TEST(StopSignal, OneLetsTheLoopFinishAndSave) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGALRM, SIGUSR2, SIGXCPU}) {
    Loop loop(nullptr);
    loop.child().send(signal);
    loop.hear();
    loop.end_step();
    EXPECT_EQ(loop.child().wait(), 42);
  }
}

TEST(StopSignal, ASecondOneQuitsAtOnce) {
  for (const int second : {SIGINT, SIGTERM}) {
    Loop loop(apart<20>);
    loop.child().send(SIGTERM);
    loop.hear();
    loop.child().send(second);
    EXPECT_EQ(loop.child().wait(), 130);
  }
}

// A shell and the kernel both send it when a terminal is closed, at their own times.
TEST(StopSignal, ASecondHangupDoesNotQuit) {
  Loop loop(apart<20>);
  loop.child().send(SIGHUP);
  loop.hear();
  loop.child().send(SIGHUP);
  loop.end_step();
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
  Loop loop(apart<19>);
  loop.child().send(SIGTERM);
  loop.hear();
  loop.child().send(SIGINT);  // another number: the kernel does not merge the two
  loop.end_step();
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
