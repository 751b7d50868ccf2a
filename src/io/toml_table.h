#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace ballast {

struct TomlMember;

// A value of a TOML (or JSON) file, with the line it stands on.
struct TomlValue {
  enum class Kind : std::uint8_t { boolean, integer, real, string, date, array, table };

  Kind kind = Kind::table;
  int line = 0;
  bool boolean = false;
  std::int64_t integer = 0;
  double real = 0;
  std::string string;
  std::vector<TomlValue> items;     // of an array
  std::vector<TomlMember> members;  // of a table, in the file's order
};

struct TomlMember {
  std::string key;
  TomlValue value;
};

// What a table was asked for: kept apart from the values, so that a forgotten key is found.
struct TomlReadKeys {
  std::vector<std::string> asked;
  std::vector<char> read;  // per member
};

// A key that other programs know and that changes nothing here. `reason` ends the note:
// "compile (line 7): <reason>".
struct IgnoredKey {
  std::string_view name;
  std::string_view reason;
};

// A view of one table. Whatever is asked for counts as known; finish() then finds the rest. A value
// of the wrong type is an Error of ErrorCode::input: "run.toml line 12: model.dtype: expected a
// string, found 16". Copies share what they have read. The TomlFile must outlive it.
class TomlTable {
 public:
  const std::string& path() const { return *path_; }
  const std::string& name() const { return name_; }  // "model", "directory 2"; "" at top level
  int line() const { return value_->line; }
  std::vector<std::string_view> keys() const;

  bool has(std::string_view key) const;  // does not count as reading
  int line_of(std::string_view key) const;
  const TomlValue* find(std::string_view key) const;  // nullptr: absent

  std::optional<std::string> string(std::string_view key) const;
  std::optional<std::int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;  // finite; an integer is one too
  std::optional<bool> boolean(std::string_view key) const;
  std::string string(std::string_view key, std::string_view otherwise) const;
  std::int64_t integer(std::string_view key, std::int64_t otherwise) const;
  double number(std::string_view key, double otherwise) const;
  bool boolean(std::string_view key, bool otherwise) const;
  // Fail where the key is missing.
  std::string require_string(std::string_view key) const;
  std::int64_t require_integer(std::string_view key) const;
  double require_number(std::string_view key) const;

  // [1, 33] and ["a", "b"]; empty when absent.
  std::vector<double> numbers(std::string_view key) const;
  std::vector<std::int64_t> integers(std::string_view key) const;
  std::vector<std::string> strings(std::string_view key) const;
  // [512, [832, 480]]: {{512}, {832, 480}}. Empty when absent.
  std::vector<std::vector<double>> number_rows(std::string_view key) const;

  std::optional<TomlTable> table(std::string_view key) const;
  std::vector<TomlTable> tables(std::string_view key) const;  // [[key]]; also a single [key]

  // Fails on the first key that nobody asked for and that is not in `ignored`, with its line and
  // the nearest known name; appends one note per ignored key. Of this table only: each nested one
  // is finished on its own.
  void finish(std::span<const IgnoredKey> ignored, std::vector<std::string>& notes) const;
  void finish() const;

  // "run.toml line 12: model.dtype: <what>" with ErrorCode::input.
  [[noreturn]] void fail_at(std::string_view key, std::string_view what,
                            std::vector<Advice> advice = {}) const;

 private:
  friend class TomlFile;
  TomlTable(const std::string* path, const TomlValue* value, std::string name);

  [[noreturn]] void fail_expected(std::string_view key, std::string_view wanted,
                                  const TomlValue& found) const;
  [[noreturn]] void fail_missing(std::string_view key) const;
  const TomlValue* array(std::string_view key, std::string_view wanted) const;
  std::string full_name(std::string_view key) const;

  const std::string* path_;
  const TomlValue* value_;
  std::string name_;
  std::shared_ptr<TomlReadKeys> seen_;  // shared: a table handed to a helper reads the same keys
};

// A configuration file, read whole. At most kMaxBytes and kMaxDepth levels; broken UTF-8, NUL,
// duplicate keys and syntax errors are Errors of ErrorCode::input with line and column.
class TomlFile {
 public:
  static constexpr std::uint64_t kMaxBytes = 1 << 20;
  static constexpr int kMaxDepth = 32;  // of brackets, and parts of a dotted key

  // A file named *.json holds the same structure in JSON.
  static TomlFile read(const std::string& path);
  static TomlFile parse(std::string_view text, std::string path);
  static TomlFile parse_json(std::string_view text, std::string path);

  const std::string& path() const { return content_->path; }
  const std::string& text() const { return content_->text; }  // as it was read, to copy it
  TomlTable root() const;

 private:
  struct Content {
    std::string path, text;
    TomlValue root;
  };
  std::unique_ptr<Content> content_;  // views point into it
};

std::string_view name_of(TomlValue::Kind kind);  // "a string"
std::string describe(const TomlValue& value);    // as it is written, shortened: '"int8"', "16"

}  // namespace ballast
