#pragma once

// `ballast train` as a process of its own that a test looks at, disturbs, and waits for.

#include <signal.h>

#include <chrono>
#include <functional>
#include <optional>
#include <thread>

#include "io/weight_files.h"
#include "tests/e2e/ballast_process.h"
#include "tests/support/tiny_training.h"
#include "train/checkpoint/checkpoint.h"
#include "train/run/run_folder.h"

namespace ballast::test {

class TrainingProcess {
 public:
  // prepare: called in the child, before the program starts.
  explicit TrainingProcess(const std::vector<std::string>& arguments,
                           const std::function<void()>& prepare = {}) {
    std::vector<char*> argv = {const_cast<char*>(BALLAST_BINARY), const_cast<char*>("train")};
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    const std::string state = dir_.path("state"), out = dir_.path("out"), err = dir_.path("err");
    pid_ = ::fork();
    if (pid_ < 0) throw std::runtime_error("fork");
    if (pid_ > 0) return;
    ::setenv("XDG_STATE_HOME", state.c_str(), 1);  // the user's own last run is none of ours
    if (prepare) prepare();
    ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT, 0600), STDOUT_FILENO);
    ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT, 0600), STDERR_FILENO);
    ::execv(BALLAST_BINARY, argv.data());
    ::_exit(127);
  }
  TrainingProcess(const TrainingProcess&) = delete;
  ~TrainingProcess() {
    if (ended()) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, &status_, 0);
  }

  pid_t pid() const { return pid_; }
  void send(int signal) const { ::kill(pid_, signal); }
  std::string err() const { return read_whole(dir_.path("err")); }
  std::string state_folder() const { return dir_.path("state"); }

  // False when the process ends first, or nothing comes of it in a minute.
  bool wait_for(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!condition()) {
      if (ended() || std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
  }

  // Waits for its end; one that does not come in two minutes is made to.
  Finished finish() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    while (!ended() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    if (!ended()) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, &status_, 0);
      ended_ = true;
    }
    return {WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_),
            read_whole(dir_.path("out")), err()};
  }

 private:
  bool ended() {
    if (!ended_) ended_ = ::waitpid(pid_, &status_, WNOHANG) == pid_;
    return ended_;
  }

  TempDir dir_;
  pid_t pid_ = -1;
  int status_ = 0;
  bool ended_ = false;
};

inline Finished train(const std::vector<std::string>& arguments,
                      const std::function<void()>& prepare = {}) {
  return TrainingProcess(arguments, prepare).finish();
}

// The folder of the newest run; empty while there is none.
inline std::string newest_run(const std::string& output_dir) {
  const auto runs = train::runs_in(output_dir);
  return runs.empty() ? std::string() : output_dir + "/" + runs.back();
}

inline int steps_logged(const std::string& output_dir) {
  const std::string log = read_whole(newest_run(output_dir) + "/run_log.jsonl");
  int steps = 0;
  for (std::size_t at = 0; (at = log.find("\"kind\":\"step\"", at)) != std::string::npos; ++at) {
    ++steps;
  }
  return steps;
}

// Every byte of the newest checkpoint is right, nothing broken stands beside it, and it is of at
// least this step.
inline void expect_whole_checkpoint(const std::string& run, std::int64_t at_least) {
  const train::CheckpointSearch search = train::find_checkpoint(run);
  ASSERT_TRUE(search.found) << run;
  EXPECT_EQ(search.notes, std::vector<std::string>{});
  EXPECT_GE(search.found->state.step, at_least);
}

inline void expect_whole_model(const std::string& folder) {
  const std::string path = folder + "/adapter_model.safetensors";
  const WeightFiles file = WeightFiles::open(path);
  ASSERT_FALSE(file.tensors().empty());
  std::vector<std::byte> bytes;
  for (const WeightTensor& t : file.tensors()) {
    bytes.resize(t.entry->bytes);
    file.read(t, bytes);
  }
}

// Paths with their contents, to see that nothing was touched; without the lock, which tells who
// asked last.
inline std::map<std::string, std::string> contents_of(const std::string& folder) {
  std::map<std::string, std::string> all;
  for (const auto& e : std::filesystem::recursive_directory_iterator(folder)) {
    if (e.path().filename() == "lock") continue;
    all[e.path().string()] = e.is_regular_file() ? read_whole(e.path().string()) : "";
  }
  return all;
}

}  // namespace ballast::test
