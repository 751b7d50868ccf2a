#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <utility>

namespace ballast::test {

// A fork that runs `f` and exits with what it returns (99 after an exception), without the parent's
// destructors or test results. Ended and awaited with the object.
class ChildProcess {
 public:
  template <class F>
  explicit ChildProcess(F&& f) : pid_(::fork()) {
    if (pid_ < 0) throw std::runtime_error("fork");
    if (pid_ > 0) return;
    int code = 99;
    try {
      code = std::forward<F>(f)();
    } catch (const std::exception& e) {
      std::fprintf(stderr, "child: %s\n", e.what());
    }
    ::_exit(code);
  }
  ChildProcess(const ChildProcess&) = delete;
  ~ChildProcess() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      wait();
    }
  }

  pid_t pid() const { return pid_; }
  void send(int signal) const { ::kill(pid_, signal); }
  // The exit code, or minus the signal that ended it.
  int wait() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_;
};

}  // namespace ballast::test
