#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/temp_dir.h"

namespace ballast::test {

struct Finished {
  int exit_code = -1;  // 128 + signal when killed
  std::string out, err;
};

enum class Stdout { captured, reader_gone, disk_full };

// Runs a built program and waits for it. prepare: called in the child, before the program starts.
inline Finished run_program(const char* program, const std::vector<std::string>& arguments,
                            Stdout where = Stdout::captured,
                            const std::function<void()>& prepare = {}) {
  const TempDir dir;
  const std::string out = dir.path("out"), err = dir.path("err");
  std::vector<char*> argv = {const_cast<char*>(program)};
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  int pipe_ends[2] = {-1, -1};
  if (where == Stdout::reader_gone) {
    if (::pipe(pipe_ends) != 0) throw std::runtime_error("pipe");
    ::close(pipe_ends[0]);
  }
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("fork");
  if (child == 0) {
    const char* path = where == Stdout::disk_full ? "/dev/full" : out.c_str();
    const int to =
        where == Stdout::reader_gone ? pipe_ends[1] : ::open(path, O_WRONLY | O_CREAT, 0600);
    ::dup2(to, STDOUT_FILENO);
    ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT, 0600), STDERR_FILENO);
    if (prepare) prepare();
    ::execv(program, argv.data());
    ::_exit(127);
  }
  if (pipe_ends[1] >= 0) ::close(pipe_ends[1]);
  int status = 0;
  if (::waitpid(child, &status, 0) != child) throw std::runtime_error("waitpid");
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_whole(out),
          read_whole(err)};
}

inline Finished run_ballast(const std::vector<std::string>& arguments,
                            Stdout where = Stdout::captured) {
  return run_program(BALLAST_BINARY, arguments, where);
}

inline std::string golden(const std::string& name) {
  return std::string(BALLAST_GOLDEN_DIR) + "/" + name + ".safetensors";
}

}  // namespace ballast::test
