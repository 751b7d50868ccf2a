#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/support/temp_dir.h"
#include "tests/support/wait_until.h"

namespace ballast::test {

// The built program, running beside the test; killed with the object.
class BackgroundBallast {
 public:
  // own_group: as a shell with job control starts it.
  explicit BackgroundBallast(const std::vector<std::string>& arguments, bool own_group = false) {
    const std::string out = dir_.path("out"), err = dir_.path("err");
    std::vector<char*> argv = {const_cast<char*>(BALLAST_BINARY)};
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ < 0) throw std::runtime_error("fork");
    if (pid_ > 0) return;
    if (own_group) ::setpgid(0, 0);
    ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT, 0600), STDOUT_FILENO);
    ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT, 0600), STDERR_FILENO);
    ::execv(BALLAST_BINARY, argv.data());
    ::_exit(127);
  }
  BackgroundBallast(const BackgroundBallast&) = delete;
  ~BackgroundBallast() {
    if (exit_code_) return;
    send(SIGKILL);
    wait();
  }

  pid_t pid() const { return pid_; }
  void send(int signal) const { ::kill(pid_, signal); }
  // The exit code, 128 + signal when killed; nullopt while it runs.
  std::optional<int> finished() { return exit_code_ ? exit_code_ : take(WNOHANG); }
  int wait() { return exit_code_ ? *exit_code_ : *take(0); }
  std::string out() const { return read_whole(dir_.path("out")); }
  std::string err() const { return read_whole(dir_.path("err")); }

 private:
  std::optional<int> take(int options) {
    int status = 0;
    if (::waitpid(pid_, &status, options) != pid_) return std::nullopt;
    exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return exit_code_;
  }

  TempDir dir_;
  pid_t pid_ = -1;
  std::optional<int> exit_code_;
};

}  // namespace ballast::test
