#pragma once

#include <signal.h>

namespace ballast::train {

// While one lives, SIGINT and SIGTERM ask the loop to stop instead of ending the process: it checks
// requested() after each step, saves and exits 0. A second signal ends the process at once with
// exit code 130 and nothing saved. Repeats within 20 ms count as one: `timeout` and job launchers
// signal both the process and its group. One at a time; handlers that were there come back at the
// end.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool requested() const { return signal() != 0; }
  int signal() const;        // the one that asked, or 0
  const char* name() const;  // "SIGTERM"; "" when none

 private:
  struct sigaction before_int_ {};
  struct sigaction before_term_ {};
};

}  // namespace ballast::train
