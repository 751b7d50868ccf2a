#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "io/toml_table.h"
#include "train/config/enum_names.h"

namespace ballast::train {

// Values of a table that lie in a range or belong to a set of words; nullopt when absent. The error
// names file, line and key.

inline std::optional<std::int64_t> integer_from(const TomlTable& t, std::string_view key,
                                                std::int64_t least) {
  const auto value = t.integer(key);
  if (value && *value < least) {
    t.fail_at(key, fmt::format("expected at least {}, found {}", least, *value));
  }
  return value;
}

inline std::optional<double> number_from(const TomlTable& t, std::string_view key, double least,
                                         double most) {
  const auto value = t.number(key);
  if (value && !(*value >= least && *value <= most)) {
    t.fail_at(key, fmt::format("expected {} to {}, found {}", least, most, *value));
  }
  return value;
}

template <class T, std::size_t N>
std::optional<T> word_from(const TomlTable& t, std::string_view key,
                           const std::array<EnumName<T>, N>& words) {
  const auto text = t.string(key);
  if (!text) return std::nullopt;
  const auto meaning = parse_enum(words, *text);
  if (!meaning) {
    t.fail_at(key,
              fmt::format("expected {}, found \"{}\"", one_of(words, *text), printable(*text, 60)));
  }
  return meaning;
}

inline constexpr double kMaxNumber = 1e30;  // no upper bound of its own

}  // namespace ballast::train
