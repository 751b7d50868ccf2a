// The file that says where a user's last run is, and the search for its flight record.

#include <cstdlib>

#include "fuzz.h"
#include "report/last_run.h"

namespace ballast::fuzz {

void one_input(Input input) {
  static MemoryFile file("state/ballast/last_run"), record("runs/one/flight_record");
  static const bool state =
      ::setenv("XDG_STATE_HOME", (memory_folder() + "/state").c_str(), 1) == 0;
  require(state);
  file.write(input.rest());
  accepts(
      [&] {
        const auto path = last_run();
        if (!path) return;
        require(*path + "\n" == input.rest() && path->find('\0') == std::string::npos);
        // Below the folder of this process: no other files are looked at.
        if (path->find("..") == std::string::npos)
          find_flight_record(memory_folder() + "/" + *path);
      },
      {ErrorCode::io});
}

}  // namespace ballast::fuzz
