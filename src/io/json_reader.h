#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "io/limits.h"

namespace ballast {

// A JSON text and how messages speak of it.
struct JsonSource {
  std::string_view text;
  std::string path;
  std::string rule;               // "st.header_json": stands in front of every message
  std::uint64_t file_offset = 0;  // of text[0]
};

// Reads a JSON text value by value, building nothing: the caller asks for what it expects and skips
// the rest.
//
//   JsonReader json({.text = text, .path = path, .rule = "config.json"});
//   json.object({{"dim", [&] { dim = json.u64(); }}, {"eps", [&] { eps = json.number(); }}});
//   json.finish();
//
// RFC 8259, UTF-8, as strict as serde_json, and at most kJsonDepth levels. Everything else is an
// Error of ErrorCode::input with line, column, file offset and the keys it happened under. Repeated
// keys are the caller's to judge.
class JsonReader {
 public:
  enum class Kind { object, array, string, number, boolean, null };

  explicit JsonReader(JsonSource source, int max_depth = limits::kJsonDepth);

  Kind peek();  // of the value that comes next

  void open_object();
  // False at the closing brace, which is then consumed. The key lives until the next string.
  bool next_key(std::string_view& key);
  struct Member {
    std::string_view key;
    std::function<void()> read;
  };
  void object(const std::vector<Member>& members);  // all of it; skips what has other keys
  void open_array();
  bool next_element();  // false at the closing bracket, which is then consumed

  // Points into the text, or into the reader when there were escapes: lives until the next string.
  std::string_view string();
  std::uint64_t u64();  // decimal digits only: no sign, fraction or exponent
  std::int64_t i64();   // the same with an optional minus
  std::int64_t i64(std::int64_t least, std::int64_t most);
  double number();                 // finite
  std::string_view number_text();  // any number, as written
  bool boolean();
  void null();
  void skip();    // any one value
  void finish();  // nothing but white space may be left

  std::uint64_t file_offset() const { return source_.file_offset + at_; }
  [[noreturn]] void fail_here(std::string_view message) const { fail_at(at_, message); }
  // As fail_here, at the beginning of the value read last.
  [[noreturn]] void fail_value(std::string_view message) const { fail_at(value_, message); }

 private:
  struct Number {
    std::string_view text;
    bool integer;
  };

  [[noreturn]] void fail_at(std::size_t offset, std::string_view message) const;
  [[noreturn]] void fail_expected(std::string_view what) const;
  std::string found() const;
  void skip_space();
  bool take(char c);
  void begin_value(Kind kind);
  void open(bool object);
  void enter(bool object);
  bool next_member(char close);
  void take_word(std::string_view word);
  std::string_view take_string();
  void decode_escape();
  unsigned take_hex4();
  Number take_number();
  void skip_one();
  void skip_plain(int outside);
  bool in_object() const { return (objects_ >> depth_ & 1) != 0; }

  JsonSource source_;
  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t value_ = 0;  // where the last value began
  int max_depth_;
  int depth_ = 0;
  std::uint64_t objects_ = 0;              // bit d: level d is an object
  std::uint64_t begun_ = 0;                // bit d: level d has had a member
  std::array<std::string_view, 64> keys_;  // per level, as written, for messages
  std::string decoded_;
};

std::string_view name_of(JsonReader::Kind kind);  // "a number"

}  // namespace ballast
