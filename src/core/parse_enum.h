#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/nearest_name.h"

namespace ballast {

// A value as users write it. Flags, files and help read the same lists of them.
template <class T>
struct EnumName {
  std::string_view name;
  T value;
};

// Any case.
inline bool equal_ignoring_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::ranges::equal(a, b, {}, lower, lower);
}

template <class T, std::size_t N>
std::optional<T> parse_enum(const std::array<EnumName<T>, N>& names, std::string_view text) {
  for (const EnumName<T>& n : names) {
    if (equal_ignoring_case(n.name, text)) return n.value;
  }
  return std::nullopt;
}

// The first name of a value.
template <class T, std::size_t N>
std::string_view enum_name(const std::array<EnumName<T>, N>& names, T value) {
  for (const EnumName<T>& n : names) {
    if (n.value == value) return n.name;
  }
  return "?";
}

// "one of a, b, c", with the nearest one where `text` looks like a slip.
inline std::string one_of(const std::vector<std::string_view>& names, std::string_view text) {
  const auto near = nearest_name(text, names);
  return "one of " + joined(names) + (near ? " (" + std::string(*near) + "?)" : "");
}

template <class T, std::size_t N>
std::string one_of(const std::array<EnumName<T>, N>& names, std::string_view text) {
  std::vector<std::string_view> texts;
  for (const EnumName<T>& n : names) texts.push_back(n.name);
  return one_of(texts, text);
}

}  // namespace ballast
