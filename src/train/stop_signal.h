#pragma once

#include <signal.h>

#include <array>

#include "core/stopwatch.h"

namespace ballast::train {

// While one lives, signals ask the loop to stop instead of ending the process: it checks
// requested() after each step, saves and exits 0.
//   SIGINT, SIGTERM   Ctrl-C, kill, job launchers. A second one ends the process at once with exit
//                     code 130 and nothing saved.
//   SIGHUP, SIGQUIT   the terminal was closed, Ctrl-\. Ignored where they were ignored (nohup).
//   SIGALRM, SIGUSR2, SIGXCPU   time limits of batch systems.
// SIGUSR1 asks for a checkpoint: take_save_request() tells once, and training continues.
// Repeats within 20 ms count as one: `timeout` and job launchers signal both the process and its
// group. One StopSignal at a time; handlers that were there come back at the end.
class StopSignal {
 public:
  // said: what happens first, for the line that the first signal writes to stderr; a literal.
  // nullptr: "stopping after this step, then saving".
  // now: what the handler takes the time from, for tests; nullptr: the machine's clock.
  explicit StopSignal(const char* said = nullptr, Clock now = nullptr);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool requested() const { return signal() != 0; }
  int signal() const;        // the one that asked, or 0
  const char* name() const;  // "SIGTERM"; "" when none
  bool take_save_request();

 private:
  std::array<struct sigaction, 8> before_{};  // of each signal
};

}  // namespace ballast::train
