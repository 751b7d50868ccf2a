#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string_view>

// Words for the person who waits, on stderr; results go to stdout. A line is
//   ballast: reading 40 blocks          ballast: warning: ...          ballast[3]: debug: ...
// (3 is the rank, where there are several). Lines of several threads do not mix.
// BALLAST_LOG=debug|info|warn|off in the environment sets what is shown; info without it.
namespace ballast::log {

enum class Level { debug, info, warn, off };

std::optional<Level> parse_level(std::string_view name);

Level level();
void set_level(Level level);
void set_rank(int rank);         // negative: alone, lines name no rank
void set_file(std::FILE* file);  // instead of stderr, in tests

// How far something is (core/progress.h).
struct ProgressRecord {
  std::string_view what;             // "reading weights"
  std::int64_t done = 0, total = 0;  // total 0: unknown
  bool bytes = false;                // else a count
  bool ended = false;                // the last one, also where total was not reached
};

// For a program that shows lines or progress itself; what is empty goes to stderr as before. Called
// one at a time, from any thread; must not log. A line is whole, without "ballast: ", and lives
// during the call.
struct Sink {
  std::function<void(Level, std::string_view)> line;
  std::function<void(const ProgressRecord&)> progress;
};
void set_sink(Sink sink);
bool shows_progress();  // whether a sink does
void give_progress(const ProgressRecord& record);

namespace detail {
void write(Level level, fmt::string_view text, fmt::format_args args);
}

template <class... Args>
void debug(fmt::format_string<Args...> text, Args&&... args) {
  detail::write(Level::debug, text, fmt::make_format_args(args...));
}

template <class... Args>
void info(fmt::format_string<Args...> text, Args&&... args) {
  detail::write(Level::info, text, fmt::make_format_args(args...));
}

template <class... Args>
void warn(fmt::format_string<Args...> text, Args&&... args) {
  detail::write(Level::warn, text, fmt::make_format_args(args...));
}

}  // namespace ballast::log
