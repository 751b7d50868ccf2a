#pragma once

#include <fmt/format.h>

#include <cstdio>
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
