#include "memory/proc_text.h"

#include <array>
#include <charconv>
#include <fstream>

#include "core/to_size.h"

namespace ballast {
namespace {

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\n";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

}  // namespace

std::optional<std::string> read_text(const std::filesystem::path& path) {
  constexpr std::size_t kMax = 1 << 20;
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string text;
  std::array<char, 4096> piece;
  while (file && text.size() < kMax) {
    file.read(piece.data(), piece.size());
    text.append(piece.data(), to_size(file.gcount()));
  }
  if (file.bad()) return std::nullopt;  // a directory opens, but does not read
  return text;
}

std::optional<std::uint64_t> parse_number(std::string_view text) {
  text = trim(text);
  std::uint64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return n;
}

std::optional<std::uint64_t> read_number(const std::filesystem::path& path) {
  const auto text = read_text(path);
  return text ? parse_number(*text) : std::nullopt;
}

std::optional<std::string_view> line_value(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    std::string_view line = take(text, '\n');
    if (!line.starts_with(key)) continue;
    line.remove_prefix(key.size());
    return trim(line);
  }
  return std::nullopt;
}

std::optional<std::uint64_t> kilobytes_of(std::string_view text, std::string_view key) {
  auto value = line_value(text, key);
  if (!value || !value->ends_with("kB")) return std::nullopt;
  value->remove_suffix(2);
  const auto n = parse_number(*value);
  if (!n || *n > (UINT64_MAX >> 10)) return std::nullopt;
  return *n << 10;
}

std::optional<int> count_list(std::string_view list) {
  constexpr std::uint64_t kMax = 1 << 16;  // more than any machine numbers its processors
  list = trim(list);
  std::uint64_t count = 0;
  while (!list.empty()) {
    std::string_view range = take(list, ',');
    const bool single = range.find('-') == std::string_view::npos;
    const auto first = parse_number(take(range, '-'));
    const auto last = single ? first : parse_number(range);
    if (!first || !last || *last < *first || *last >= kMax) return std::nullopt;
    count += *last - *first + 1;
    if (count > kMax) return std::nullopt;
  }
  if (count == 0) return std::nullopt;
  return static_cast<int>(count);
}

std::string_view take(std::string_view& rest, char separator) {
  const std::size_t at = rest.find(separator);
  const std::string_view head = rest.substr(0, at);
  rest = at == std::string_view::npos ? std::string_view() : rest.substr(at + 1);
  return head;
}

}  // namespace ballast
