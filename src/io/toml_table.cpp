#include "io/toml_table.h"

#include <algorithm>
#include <cmath>

#include "core/nearest_name.h"
#include "core/to_size.h"

namespace ballast {

std::string_view name_of(TomlValue::Kind kind) {
  constexpr std::string_view kNames[] = {"true or false",  "an integer", "a number", "a string",
                                         "a date or time", "a list",     "a table"};
  return kNames[to_size(kind)];
}

std::string describe(const TomlValue& value) {
  switch (value.kind) {
    case TomlValue::Kind::boolean:
      return value.boolean ? "true" : "false";
    case TomlValue::Kind::integer:
      return fmt::format("{}", value.integer);
    case TomlValue::Kind::real:
      return fmt::format("{}", value.real);
    case TomlValue::Kind::string:
      return fmt::format("\"{}\"", printable(value.string, 60));
    case TomlValue::Kind::array:
      return fmt::format("a list of {}", value.items.size());
    default:
      return std::string(name_of(value.kind));
  }
}

TomlTable::TomlTable(const std::string* path, const TomlValue* value, std::string name)
    : path_(path), value_(value), name_(std::move(name)), seen_(std::make_shared<TomlReadKeys>()) {
  seen_->read.resize(value->members.size());
}

std::vector<std::string_view> TomlTable::keys() const {
  std::vector<std::string_view> names;
  for (const auto& [key, value] : value_->members) names.push_back(key);
  return names;
}

bool TomlTable::has(std::string_view key) const {
  return std::ranges::any_of(value_->members, [&](const auto& m) { return m.key == key; });
}

int TomlTable::line_of(std::string_view key) const {
  for (const auto& [name, value] : value_->members) {
    if (name == key) return value.line;
  }
  return value_->line;
}

const TomlValue* TomlTable::find(std::string_view key) const {
  if (std::ranges::find(seen_->asked, key) == seen_->asked.end()) seen_->asked.emplace_back(key);
  for (std::size_t i = 0; i < value_->members.size(); ++i) {
    if (value_->members[i].key != key) continue;
    seen_->read[i] = 1;
    return &value_->members[i].value;
  }
  return nullptr;
}

std::string TomlTable::full_name(std::string_view key) const {
  return name_.empty() ? printable(key) : fmt::format("{}.{}", name_, printable(key));
}

void TomlTable::fail_at(std::string_view key, std::string_view what,
                        std::vector<Advice> advice) const {
  fail(ErrorCode::input,
       fmt::format("{} line {}: {}: {}", *path_, line_of(key), full_name(key), what),
       std::move(advice));
}

void TomlTable::fail_expected(std::string_view key, std::string_view wanted,
                              const TomlValue& found) const {
  fail(ErrorCode::input, "{} line {}: {}: expected {}, found {}", *path_, found.line,
       full_name(key), wanted, describe(found));
}

void TomlTable::fail_missing(std::string_view key) const {
  const std::string where = name_.empty() ? *path_ : fmt::format("{} [{}]", *path_, name_);
  std::vector<std::string_view> unread;  // one of them may be the key, mistyped
  for (std::size_t i = 0; i < value_->members.size(); ++i) {
    if (seen_->read[i] == 0) unread.push_back(value_->members[i].key);
  }
  const auto near = nearest_name(key, unread);
  fail(ErrorCode::input, "{}: the key {} is missing{}", where, key,
       near ? fmt::format("; line {} has \"{}\"", line_of(*near), printable(*near)) : "");
}

namespace {

std::optional<double> finite_number(const TomlValue& value) {
  if (value.kind == TomlValue::Kind::integer) return static_cast<double>(value.integer);
  if (value.kind == TomlValue::Kind::real && std::isfinite(value.real)) return value.real;
  return std::nullopt;
}

}  // namespace

std::optional<std::string> TomlTable::string(std::string_view key) const {
  const TomlValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->kind != TomlValue::Kind::string) fail_expected(key, "a string", *value);
  return value->string;
}

std::optional<std::int64_t> TomlTable::integer(std::string_view key) const {
  const TomlValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->kind != TomlValue::Kind::integer) fail_expected(key, "an integer", *value);
  return value->integer;
}

std::optional<double> TomlTable::number(std::string_view key) const {
  const TomlValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto number = finite_number(*value);
  if (!number) fail_expected(key, "a finite number", *value);
  return number;
}

std::optional<bool> TomlTable::boolean(std::string_view key) const {
  const TomlValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->kind != TomlValue::Kind::boolean) fail_expected(key, "true or false", *value);
  return value->boolean;
}

std::string TomlTable::string(std::string_view key, std::string_view otherwise) const {
  return string(key).value_or(std::string(otherwise));
}

std::int64_t TomlTable::integer(std::string_view key, std::int64_t otherwise) const {
  return integer(key).value_or(otherwise);
}

double TomlTable::number(std::string_view key, double otherwise) const {
  return number(key).value_or(otherwise);
}

bool TomlTable::boolean(std::string_view key, bool otherwise) const {
  return boolean(key).value_or(otherwise);
}

std::string TomlTable::require_string(std::string_view key) const {
  auto value = string(key);
  if (!value) fail_missing(key);
  return *std::move(value);
}

std::int64_t TomlTable::require_integer(std::string_view key) const {
  const auto value = integer(key);
  if (!value) fail_missing(key);
  return *value;
}

double TomlTable::require_number(std::string_view key) const {
  const auto value = number(key);
  if (!value) fail_missing(key);
  return *value;
}

const TomlValue* TomlTable::array(std::string_view key, std::string_view wanted) const {
  const TomlValue* value = find(key);
  if (value != nullptr && value->kind != TomlValue::Kind::array) {
    fail_expected(key, wanted, *value);
  }
  return value;
}

std::vector<double> TomlTable::numbers(std::string_view key) const {
  std::vector<double> out;
  const TomlValue* list = array(key, "a list of numbers");
  if (list == nullptr) return out;
  for (const TomlValue& item : list->items) {
    const auto number = finite_number(item);
    if (!number) fail_expected(key, "a list of finite numbers", item);
    out.push_back(*number);
  }
  return out;
}

std::vector<std::int64_t> TomlTable::integers(std::string_view key) const {
  std::vector<std::int64_t> out;
  const TomlValue* list = array(key, "a list of integers");
  if (list == nullptr) return out;
  for (const TomlValue& item : list->items) {
    if (item.kind != TomlValue::Kind::integer) fail_expected(key, "a list of integers", item);
    out.push_back(item.integer);
  }
  return out;
}

std::vector<std::string> TomlTable::strings(std::string_view key) const {
  std::vector<std::string> out;
  const TomlValue* list = array(key, "a list of strings");
  if (list == nullptr) return out;
  for (const TomlValue& item : list->items) {
    if (item.kind != TomlValue::Kind::string) fail_expected(key, "a list of strings", item);
    out.push_back(item.string);
  }
  return out;
}

std::vector<std::vector<double>> TomlTable::number_rows(std::string_view key) const {
  constexpr std::string_view kWanted = "a list of numbers or of lists of numbers";
  std::vector<std::vector<double>> out;
  const TomlValue* list = array(key, kWanted);
  if (list == nullptr) return out;
  for (const TomlValue& item : list->items) {
    std::vector<double>& row = out.emplace_back();
    const bool is_list = item.kind == TomlValue::Kind::array;
    for (const TomlValue& cell : is_list ? std::span(item.items) : std::span(&item, 1)) {
      const auto number = finite_number(cell);
      if (!number) fail_expected(key, kWanted, cell);
      row.push_back(*number);
    }
  }
  return out;
}

std::optional<TomlTable> TomlTable::table(std::string_view key) const {
  const TomlValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->kind != TomlValue::Kind::table) fail_expected(key, "a table", *value);
  return TomlTable(path_, value, full_name(key));
}

std::vector<TomlTable> TomlTable::tables(std::string_view key) const {
  std::vector<TomlTable> out;
  const TomlValue* value = find(key);
  if (value == nullptr) return out;
  if (value->kind == TomlValue::Kind::table) {
    out.push_back(TomlTable(path_, value, full_name(key)));
    return out;
  }
  if (value->kind != TomlValue::Kind::array) fail_expected(key, "a list of tables", *value);
  for (const TomlValue& item : value->items) {
    if (item.kind != TomlValue::Kind::table) fail_expected(key, "a list of tables", item);
    out.push_back(TomlTable(path_, &item, fmt::format("{} {}", full_name(key), out.size() + 1)));
  }
  return out;
}

void TomlTable::finish(std::span<const IgnoredKey> ignored, std::vector<std::string>& notes) const {
  for (std::size_t i = 0; i < value_->members.size(); ++i) {
    const auto& [key, value] = value_->members[i];
    if (seen_->read[i] != 0) continue;
    const auto known = std::ranges::find(ignored, key, &IgnoredKey::name);
    if (known != ignored.end()) {
      notes.push_back(fmt::format("{} (line {}): {}", full_name(key), value.line, known->reason));
      continue;
    }
    std::vector<std::string_view> names(seen_->asked.begin(), seen_->asked.end());
    for (const IgnoredKey& k : ignored) names.push_back(k.name);
    fail(ErrorCode::input, "{} line {}: unknown key \"{}\"{}{}", *path_, value.line,
         printable(key, 60), name_.empty() ? "" : " in " + name_, suggestion(key, names));
  }
}

void TomlTable::finish() const {
  std::vector<std::string> notes;
  finish({}, notes);
}

}  // namespace ballast
