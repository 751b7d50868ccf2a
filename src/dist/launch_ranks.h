#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace ballast {

struct LaunchOptions {
  int ranks = 1;
  std::vector<std::string> arguments;  // of each rank, behind the program's name
  std::string program = "/proc/self/exe";
  // How long ranks may take to end by themselves when one of them is lost, and then after SIGTERM.
  std::chrono::milliseconds patience{2000};
};

// Starts the ranks of a job on this host and waits until all have ended; returns the exit code.
//
// Each rank has a process group of its own, its part of the processors that this process may use,
// the environment of rank_environment.h, and is killed when this process is. Rank 0 has the
// standard files; of the others only standard error is kept.
//
// Any end that is not in order ends all: it is recorded in the ranks' memory, which ends their
// waiting, and who does not end by itself gets SIGTERM, then SIGKILL. The exit code is that of the
// rank where it began; where ranks have said why (dist/control_channel.h), nothing more is. Fails
// with ErrorCode::lost where a signal ended that rank, or where it left others waiting, and with
// ErrorCode::device where a rank cannot be started.
//
// SIGINT, SIGTERM and other requests to stop are handed on once. A second SIGINT or SIGTERM kills
// all ranks: 130. SIGUSR1 is handed on each time. SIGTSTP (Ctrl-Z) stops all ranks and this
// process, which lets them continue when it does.
int launch_ranks(const LaunchOptions& options);

}  // namespace ballast
