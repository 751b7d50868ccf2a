#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>

#include "report/flight_record.h"
#include "report/run_log.h"
#include "report/watch/routes.h"
#include "tests/support/temp_dir.h"

namespace ballast::watch_test {

inline constexpr const char* kToken = "0123456789abcdef0123456789abcdef";

inline StepRecord step_of(std::int64_t number) {
  StepRecord r;
  r.time = 1'700'000'000 + static_cast<double>(number);
  r.step = number;
  r.epoch = 1;
  r.loss = 1.0 / static_cast<double>(number);
  r.lr = 1e-4;
  r.grad_norm = 0.5;
  r.seconds = 2;
  r.times = {.compute = 1.5, .upload = 0.5, .disk = 0.25, .waiting = 0.25, .data = 0, .save = 0};
  r.planned = {{100}, {200}, {0}, {400}};
  r.measured = {{90}, {190}, {0}, {380}};
  r.samples = {"clip#0"};
  r.t = {0.5};
  return r;
}

inline RunInfo info_of(const std::string& title) {
  RunInfo info;
  info.title = title;
  info.command = "ballast train x.toml";
  info.total_steps = 100;
  return info;
}

inline FlightState state_of(Phase phase, std::int64_t step) {
  FlightState state;
  state.phase = phase;
  state.step = step;
  return state;
}

// A run's folder, and the page of it.
class WatchedRun {
 public:
  WatchedRun() { std::filesystem::create_directory(folder()); }

  std::string folder() const { return dir_.path("run"); }
  std::string path(const std::string& name) const { return folder() + "/" + name; }
  std::string log_path() const { return path(std::string(kRunLogFile)); }
  void write(const std::string& name, std::string_view text) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    std::ofstream(path(name), std::ios::binary) << text;
  }
  // The run's line and so many steps.
  void log_steps(std::int64_t steps) const {
    RunLog log(log_path(), 0);
    log.run(info_of("tiny </script><b>"));
    for (std::int64_t s = 1; s <= steps; ++s) log.step(step_of(s));
  }
  // As a process leaves it that ends in this phase.
  void leave_record(Phase phase, std::int64_t step) const {
    const pid_t child = ::fork();
    if (child < 0) throw std::runtime_error("fork");
    if (child == 0) {
      FlightRecorder(path(std::string(kFlightFile)), start()).update(state_of(phase, step));
      ::_exit(0);
    }
    int status = 0;
    if (::waitpid(child, &status, 0) != child) throw std::runtime_error("waitpid");
  }
  FlightStart start() const {
    return {.command = "ballast train x.toml",
            .folder = folder(),
            .total_steps = 100,
            .planned = {{100}, {200}, {0}, {400}},
            .allowed = {{0}, {0}, {0}, {800}}};
  }

  WatchRoutes routes() const {
    return WatchRoutes({.folder = folder(),
                        .token = kToken,
                        .now = [] { return 1'700'000'200.0; },
                        .steady_now = [] { return 0.0; }});
  }
  WatchAnswer get(const std::string& target, WatchRequest more = {}) const {
    const std::string cookie = std::string("ballast=") + kToken;
    if (more.method.empty()) more.method = "GET";
    if (more.host.empty()) more.host = "localhost:8080";
    if (more.cookie.empty()) more.cookie = cookie;
    more.target = target;
    WatchRoutes r = routes();
    return r.answer(more);
  }

 private:
  test::TempDir dir_;
};

inline std::string header_of(const WatchAnswer& answer, std::string_view name) {
  for (const auto& [n, value] : answer.headers) {
    if (n == name) return value;
  }
  return {};
}

}  // namespace ballast::watch_test
