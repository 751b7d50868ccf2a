#include "report/last_run.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "memory/disk_file.h"
#include "memory/text_file.h"
#include "report/flight_record.h"

namespace ballast {
namespace {

namespace fs = std::filesystem;

std::optional<fs::path> pointer_file() {
  const auto folder = [](const char* variable) -> std::optional<fs::path> {
    const char* const value = std::getenv(variable);
    if (value == nullptr || *value != '/') return std::nullopt;  // relative ones are to be ignored
    return fs::path(value);
  };
  if (const auto state = folder("XDG_STATE_HOME")) return *state / "ballast/last_run";
  if (const auto home = folder("HOME")) return *home / ".local/state/ballast/last_run";
  return std::nullopt;
}

}  // namespace

void remember_last_run(const std::string& flight_record) {
  const auto file = pointer_file();
  std::error_code error;
  const fs::path absolute = fs::absolute(flight_record, error);
  if (!file || error) return;
  fs::create_directories(file->parent_path(), error);
  // Under its name only when whole.
  const std::string fresh = file->string() + "." + std::to_string(::getpid());
  std::ofstream out(fresh, std::ios::binary | std::ios::trunc);
  out << absolute.string() << '\n';
  out.close();
  if (out) fs::rename(fresh, *file, error);
  if (!out || error) fs::remove(fresh, error);
}

std::optional<std::string> last_run() {
  constexpr std::uint64_t kLongestPath = 64 << 10;
  const auto file = pointer_file();
  auto text = file ? read_text_file_if_there(file->string(), kLongestPath, "a path") : std::nullopt;
  if (!text || text->empty() || text->back() != '\n') return std::nullopt;
  text->pop_back();
  if (text->find('\0') != std::string::npos) return std::nullopt;
  return text;
}

std::optional<std::string> find_flight_record(const std::string& path) {
  return find_run_file(path, kFlightFile);
}

std::optional<std::string> find_run_file(const std::string& path, std::string_view name) {
  std::error_code error;
  if (fs::is_regular_file(path, error)) return path;
  const fs::path own = fs::path(path) / name;
  if (fs::is_regular_file(own, error)) return own.string();
  std::optional<std::string> newest;
  fs::file_time_type newest_time{};
  fs::directory_iterator at(path, error), end;
  for (; !error && at != end; at.increment(error)) {
    const fs::path record = at->path() / name;
    std::error_code missing;
    if (!fs::is_regular_file(record, missing)) continue;
    const auto time = fs::last_write_time(record, missing);
    if (missing || (newest && time <= newest_time)) continue;
    newest = record.string();
    newest_time = time;
  }
  const bool absent = error == std::errc::no_such_file_or_directory;
  if (error && !absent && error != std::errc::not_a_directory) {
    fail_io(printable(path, 400), "look for a run there", error.value());
  }
  return newest;
}

}  // namespace ballast
