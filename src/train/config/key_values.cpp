#include "train/config/key_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/nearest_name.h"

namespace ballast::train {

KeyValues::KeyValues(const Setting& flag, std::initializer_list<std::string_view> known)
    : where_(flag.where), code_(flag.code) {
  for (const std::string& word : flag.values) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos) flag.fail_value("key=value");
    const std::string key = word.substr(0, equals);
    if (std::ranges::find(known, key) == known.end()) {
      const std::vector<std::string_view> names(known);
      fail(code_, fmt::format("{}: \"{}\" is not supported{}: known are {}", where_,
                              printable(key, 60), suggestion(key, names), joined(names)));
    }
    auto value = parse_python_literal(word.substr(equals + 1));
    if (!value) {
      fail(code_, fmt::format("{}: {}: \"{}\" is no Python literal", where_, key,
                              printable(word.substr(equals + 1), 60)));
    }
    items_.emplace_back(key, *std::move(value));
  }
}

void KeyValues::fail_value(std::string_view key, std::string_view expected) const {
  fail(code_, fmt::format("{}: {}: expected {}", where_, key, expected));
}

const TomlValue* KeyValues::find(std::string_view key) const {
  for (const auto& [name, value] : items_) {
    if (name == key) return std::get_if<TomlValue>(&value);
  }
  return nullptr;
}

double KeyValues::number_of(std::string_view key, const TomlValue& value) const {
  if (value.kind == TomlValue::Kind::integer) return static_cast<double>(value.integer);
  if (value.kind != TomlValue::Kind::real || !std::isfinite(value.real)) {
    fail_value(key, "a number");
  }
  return value.real;
}

std::optional<double> KeyValues::number(std::string_view key, double least) const {
  const TomlValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const double number = number_of(key, *value);
  if (number < least) fail_value(key, fmt::format("at least {}", least));
  return number;
}

std::optional<bool> KeyValues::boolean(std::string_view key) const {
  const TomlValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->kind != TomlValue::Kind::boolean) fail_value(key, "True or False");
  return value->boolean;
}

std::optional<std::pair<double, double>> KeyValues::pair(std::string_view key) const {
  const TomlValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->kind != TomlValue::Kind::array || value->items.size() != 2) {
    fail_value(key, "two numbers, such as (0.9, 0.99)");
  }
  return std::pair(number_of(key, value->items[0]), number_of(key, value->items[1]));
}

std::vector<std::string> KeyValues::strings(std::string_view key) const {
  std::vector<std::string> out;
  const TomlValue* value = find(key);
  if (value == nullptr) return out;
  if (value->kind != TomlValue::Kind::array) fail_value(key, "a list of strings");
  for (const TomlValue& item : value->items) {
    if (item.kind != TomlValue::Kind::string) fail_value(key, "a list of strings");
    out.push_back(item.string);
  }
  return out;
}

}  // namespace ballast::train
