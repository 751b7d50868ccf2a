#include "core/log.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "core/error.h"
#include "core/to_size.h"

namespace ballast::log {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"debug", "info", "warn", "off"};
constexpr std::array<std::string_view, 4> kMarks = {"debug: ", "", "warning: ", ""};

std::atomic<int> rank{-1};
std::atomic<std::FILE*> file{nullptr};  // nullptr: stderr

std::mutex one_at_a_time;  // lines, also where the file is not a pipe or a terminal
std::atomic<bool> sink_shows_progress{false};

Sink& sink() {  // guarded by one_at_a_time
  static Sink it;
  return it;
}

void write_line(Level line_level, std::string_view text) {
  const std::lock_guard lock(one_at_a_time);
  if (sink().line) {
    sink().line(line_level, text);
    return;
  }
  std::FILE* const out = file != nullptr ? file.load() : stderr;
  fmt::memory_buffer line;
  // On a terminal a progress line may stand here (core/progress.h); it is drawn again later.
  if (isatty(fileno(out)) != 0) line.append(std::string_view("\033[K"));
  line.append(std::string_view("ballast"));
  if (rank >= 0) fmt::format_to(std::back_inserter(line), "[{}]", rank.load());
  fmt::format_to(std::back_inserter(line), ": {}{}\n", kMarks[to_size(line_level)], text);
  std::fwrite(line.data(), 1, line.size(), out);
  std::fflush(out);
}

Level initial_level() {
  const char* const name = std::getenv("BALLAST_LOG");
  if (name == nullptr || *name == '\0') return Level::info;
  if (const auto found = parse_level(name)) return *found;
  write_line(Level::warn, fmt::format("BALLAST_LOG is \"{}\", expected debug, info, warn or off",
                                      printable(name)));
  return Level::info;
}

std::atomic<Level>& current() {
  static std::atomic<Level> level = initial_level();
  return level;
}

}  // namespace

std::optional<Level> parse_level(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<Level>(i);
  }
  return std::nullopt;
}

Level level() { return current(); }
void set_level(Level level) { current() = level; }
void set_rank(int r) { rank = r; }
void set_file(std::FILE* f) { file = f; }

void set_sink(Sink to) {
  const std::lock_guard lock(one_at_a_time);
  sink() = std::move(to);
  sink_shows_progress = static_cast<bool>(sink().progress);
}

bool shows_progress() { return sink_shows_progress; }

void give_progress(const ProgressRecord& record) {
  if (level() > Level::info) return;
  const std::lock_guard lock(one_at_a_time);
  if (sink().progress) sink().progress(record);
}

void detail::write(Level line_level, fmt::string_view text, fmt::format_args args) {
  if (line_level < level()) return;
  write_line(line_level, fmt::vformat(text, args));
}

}  // namespace ballast::log
