#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace ballast {

// The small text files of /proc and /sys. Whatever is missing or malformed is nullopt.

// At most the first mebibyte of the file; those that matter here are far shorter.
std::optional<std::string> read_text(const std::filesystem::path& path);

// A decimal number with blanks around it and nothing else.
std::optional<std::uint64_t> parse_number(std::string_view text);
std::optional<std::uint64_t> read_number(const std::filesystem::path& path);

// What follows `key` on the line that starts with it, blanks trimmed: "MemTotal:" gives "123 kB".
std::optional<std::string_view> line_value(std::string_view text, std::string_view key);

// line_value of a "123 kB" line, in bytes.
std::optional<std::uint64_t> kilobytes_of(std::string_view text, std::string_view key);

// How many numbers a list such as "0-3,7" names.
std::optional<int> count_list(std::string_view list);

// Splits off the text before the first `separator` and shortens `rest` to what follows it.
std::string_view take(std::string_view& rest, char separator);

}  // namespace ballast
