#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
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

// The fields of MachineOptions with these names; a size may be a number of bytes.
inline void read_machine_options(const TomlTable& t, std::span<const std::string_view> names,
                                 MachineOptions& to) {
  MachineOptions::fields(to, [&](std::string_view key, auto&& field, std::string_view) {
    using Field = std::remove_cvref_t<decltype(field)>;
    if constexpr (requires { set_option(field, std::string_view()); }) {
      const TomlValue* value = t.find(key);
      if (std::ranges::find(names, key) == names.end() || value == nullptr) return;
      const bool bytes = std::is_same_v<Field, std::optional<Bytes>> &&
                         value->kind == TomlValue::Kind::integer && value->integer >= 0;
      const std::string text = bytes ? std::to_string(value->integer) : *t.string(key);
      if (const auto fault = set_option(field, text)) t.fail_at(key, *fault);
    }
  });
}

// The keys that Options::fields visits.
template <class Options>
void read_fields(const TomlTable& t, Options& to) {
  Options::fields(to,
                  [&](std::string_view key, auto& field, std::string_view, const auto&... limits) {
                    using Field = std::remove_cvref_t<decltype(field)>;
                    if constexpr (std::is_same_v<Field, bool>) {
                      field = t.boolean(key).value_or(field);
                    } else if constexpr (std::is_enum_v<Field>) {
                      field = word_from(t, key, limits...).value_or(field);
                    } else if constexpr (std::is_integral_v<Field>) {
                      field = integer_from(t, key, limits...).value_or(field);
                    } else {
                      field = number_from(t, key, limits...).value_or(field);
                    }
                  });
}

inline constexpr double kMaxNumber = 1e30;  // no upper bound of its own

}  // namespace ballast::train
