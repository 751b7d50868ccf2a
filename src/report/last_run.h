#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ballast {

// Notes where the flight record of this user's last run is, for `ballast doctor` without a path:
// $XDG_STATE_HOME/ballast/last_run, else ~/.local/state/ballast/last_run. Best effort: without a
// home, or one that cannot be written, nothing is noted.
void remember_last_run(const std::string& flight_record);
std::optional<std::string> last_run();

// A run's file of that name below path: path itself, the one in that folder, or the newest in one
// of its folders (an output_dir with several runs). A path that cannot be looked at fails with
// ErrorCode::io.
std::optional<std::string> find_run_file(const std::string& path, std::string_view name);
// The same for the flight record.
std::optional<std::string> find_flight_record(const std::string& path);

}  // namespace ballast
