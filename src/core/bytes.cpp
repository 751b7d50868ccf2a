#include "core/bytes.h"

#include <array>
#include <cctype>
#include <charconv>
#include <utility>

#include "core/to_size.h"

namespace ballast {

std::optional<Bytes> parse_bytes(std::string_view text) {
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || number < 0) return std::nullopt;
  std::string unit;
  for (const char c : text.substr(to_size(end - text.data()))) {
    if (c != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  constexpr std::array<std::pair<std::string_view, double>, 16> kUnits = {{{"", 1},
                                                                           {"b", 1},
                                                                           {"k", 1e3},
                                                                           {"kb", 1e3},
                                                                           {"kib", 0x1p10},
                                                                           {"ki", 0x1p10},
                                                                           {"m", 1e6},
                                                                           {"mb", 1e6},
                                                                           {"mib", 0x1p20},
                                                                           {"mi", 0x1p20},
                                                                           {"g", 1e9},
                                                                           {"gb", 1e9},
                                                                           {"gib", 0x1p30},
                                                                           {"gi", 0x1p30},
                                                                           {"t", 1e12},
                                                                           {"tb", 1e12}}};
  if (unit == "tib") unit = "gib", number *= 1024;
  for (const auto& [name, factor] : kUnits) {
    if (unit != name) continue;
    const double bytes = number * factor;
    if (!(bytes < 0x1p64)) return std::nullopt;
    return Bytes{static_cast<std::uint64_t>(bytes)};
  }
  return std::nullopt;
}

std::optional<std::string> missing_unit(std::string_view text) {
  while (text.ends_with(' ')) text.remove_suffix(1);
  double number = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number, std::chars_format::fixed);
  if (error != std::errc() || end != last || !(number > 0 && number < 1e6)) return std::nullopt;
  // Four digits and more are how tools show megabytes.
  return fmt::format("{} means {} byte{}; did you mean {}{}?", text,
                     static_cast<std::uint64_t>(number), number >= 1 && number < 2 ? "" : "s", text,
                     number < 1000 ? "GB" : "MB");
}

std::string to_string(Bytes b) {
  constexpr std::array<std::pair<double, const char*>, 4> kUnits = {
      {{1e12, "TB"}, {1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}}};
  const auto n = static_cast<double>(b.count);
  for (const auto& [factor, unit] : kUnits) {
    if (n < factor) continue;
    const double v = n / factor;
    return fmt::format("{:.{}f} {}", v, v < 10 ? 3 : v < 100 ? 2 : 1, unit);
  }
  return fmt::format("{} B", b.count);
}

}  // namespace ballast
