#include <algorithm>
#include <csignal>

#include "app/program.h"
#include "core/crash_handler.h"
#include "core/library_path.h"
#include "core/system_limits.h"

int main(int argc, char** argv) {
  ballast::use_absolute_library_path(argv);
  // A reader that goes away is a failed write (app/output.h), not the end of the process; a file
  // that may not grow as well.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  ballast::raise_open_files_limit();
  ballast::report_lanes_on_crash();
  ballast::exit_when_memory_is_out();
  return ballast::run_program({argv + std::min(argc, 1), argv + argc});
}
