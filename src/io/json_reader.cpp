#include "io/json_reader.h"

#include <algorithm>
#include <charconv>

#include "core/error.h"
#include "io/utf8.h"

namespace ballast {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Ends a plain run inside a string: the quote, an escape, or a byte that may not stand there.
bool is_special(char c) { return c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20; }

}  // namespace

std::string_view name_of(JsonReader::Kind kind) {
  switch (kind) {
    case JsonReader::Kind::object:
      return "an object";
    case JsonReader::Kind::array:
      return "an array";
    case JsonReader::Kind::string:
      return "a string";
    case JsonReader::Kind::number:
      return "a number";
    case JsonReader::Kind::boolean:
      return "true or false";
    case JsonReader::Kind::null:
      return "null";
  }
  return "";
}

JsonReader::JsonReader(JsonSource source, int max_depth)
    : source_(std::move(source)), text_(source_.text), max_depth_(max_depth) {
  check(max_depth > 0 && max_depth < 64, "JSON depth {} is not in 1..63", max_depth);
  if (const auto bad = first_invalid_utf8(text_)) fail_at(*bad, "invalid UTF-8");
}

void JsonReader::fail_at(std::size_t offset, std::string_view message) const {
  const std::string_view before = text_.substr(0, offset);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
  std::string text =
      fmt::format("{}: {}: {} at line {}, column {} (byte offset {})", source_.path, source_.rule,
                  message, line, offset - line_start + 1, source_.file_offset + offset);
  const char* lead = ", in ";
  for (int level = 1; level <= depth_; ++level) {
    const std::string_view key = keys_[static_cast<std::size_t>(level)];
    if (key.data() == nullptr) continue;
    text += fmt::format("{}\"{}\"", lead, printable(key));
    lead = " / ";
  }
  fail(ErrorCode::input, std::move(text));
}

std::string JsonReader::found() const {
  if (at_ >= text_.size()) return "the end of the text";
  return fmt::format("'{}'", printable(text_.substr(at_, 1)));
}

void JsonReader::fail_expected(std::string_view what) const {
  fail_here(fmt::format("expected {}, found {}", what, found()));
}

void JsonReader::skip_space() {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c != ' ' && c != '\t' && c != '\n' && c != '\r') return;
    ++at_;
  }
}

bool JsonReader::take(char c) {
  skip_space();
  if (at_ >= text_.size() || text_[at_] != c) return false;
  ++at_;
  return true;
}

JsonReader::Kind JsonReader::peek() {
  skip_space();
  const char c = at_ < text_.size() ? text_[at_] : '\0';
  if (c == '{') return Kind::object;
  if (c == '[') return Kind::array;
  if (c == '"') return Kind::string;
  if (c == '-' || is_digit(c)) return Kind::number;
  if (c == 't' || c == 'f') return Kind::boolean;
  if (c == 'n') return Kind::null;
  fail_expected("a value");
}

void JsonReader::begin_value(Kind kind) {
  const Kind is = peek();
  value_ = at_;
  if (is != kind) fail_here(fmt::format("expected {}, found {}", name_of(kind), name_of(is)));
}

void JsonReader::open(char bracket, bool object) {
  begin_value(object ? Kind::object : Kind::array);
  take(bracket);
  if (depth_ == max_depth_) fail_value(fmt::format("nested deeper than {} levels", max_depth_));
  ++depth_;
  const std::uint64_t level = 1ull << depth_;
  objects_ = object ? objects_ | level : objects_ & ~level;
  begun_ &= ~level;
  keys_[static_cast<std::size_t>(depth_)] = {};
}

void JsonReader::open_object() { open('{', true); }
void JsonReader::open_array() { open('[', false); }

bool JsonReader::next_member(char close) {
  const std::uint64_t level = 1ull << depth_;
  if (take(close)) {
    --depth_;
    return false;
  }
  if ((begun_ & level) != 0 && !take(',')) fail_expected(fmt::format("',' or '{}'", close));
  begun_ |= level;
  return true;
}

bool JsonReader::next_key(std::string_view& key) {
  check(depth_ > 0 && in_object(), "next_key outside an object");
  if (!next_member('}')) return false;
  skip_space();
  if (at_ >= text_.size() || text_[at_] != '"') fail_expected("a key in quotes");
  const std::size_t begin = at_ + 1;
  key = take_string();
  keys_[static_cast<std::size_t>(depth_)] = text_.substr(begin, at_ - 1 - begin);
  if (!take(':')) fail_expected("':'");
  return true;
}

bool JsonReader::next_element() {
  check(depth_ > 0 && !in_object(), "next_element outside an array");
  return next_member(']');
}

std::string_view JsonReader::string() {
  begin_value(Kind::string);
  return take_string();
}

std::string_view JsonReader::take_string() {
  const std::size_t begin = ++at_;  // past the quote
  const auto run = [&] {
    const std::size_t from = at_;
    while (at_ < text_.size() && !is_special(text_[at_])) ++at_;
    return text_.substr(from, at_ - from);
  };
  const std::string_view plain = run();
  if (at_ < text_.size() && text_[at_] == '"') return ++at_, plain;
  // Decoding never lengthens, so the written length is room enough and found before it is asked
  // for.
  std::size_t end = at_;
  while (end < text_.size() && text_[end] != '"') end += text_[end] == '\\' ? 2 : 1;
  decoded_.clear();
  decoded_.reserve(std::min(end, text_.size()) - begin);
  decoded_ += plain;
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c == '"') return ++at_, std::string_view(decoded_);
    if (c != '\\') fail_here(fmt::format("control character {} in a string", found()));
    decode_escape();
    decoded_ += run();
  }
  fail_expected("'\"' at the end of a string");
}

void JsonReader::decode_escape() {
  const std::size_t begin = at_++;
  const char c = at_ < text_.size() ? text_[at_] : '\0';
  constexpr std::string_view kNames = "\"\\/bfnrt";
  constexpr std::string_view kMeant = "\"\\/\b\f\n\r\t";
  if (c != '\0' && kNames.find(c) != std::string_view::npos) {
    decoded_ += kMeant[kNames.find(c)];
    ++at_;
    return;
  }
  if (c != 'u') fail_expected("an escape of \" \\ / b f n r t u");
  ++at_;
  char32_t code = take_hex4();
  if (code >= 0xdc00 && code <= 0xdfff) fail_at(begin, "lone surrogate in a string");
  if (code >= 0xd800 && code <= 0xdbff) {
    if (text_.substr(at_, 2) != "\\u") fail_at(begin, "lone surrogate in a string");
    at_ += 2;
    const char32_t low = take_hex4();
    if (low < 0xdc00 || low > 0xdfff) fail_at(begin, "lone surrogate in a string");
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
  }
  append_utf8(decoded_, code);
}

unsigned JsonReader::take_hex4() {
  const std::string_view digits = text_.substr(at_, 4);
  unsigned value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (error != std::errc() || end != digits.data() + 4) fail_expected("four hexadecimal digits");
  at_ += 4;
  return value;
}

JsonReader::Number JsonReader::take_number() {
  begin_value(Kind::number);
  const auto digit = [&] { return at_ < text_.size() && is_digit(text_[at_]); };
  const auto is = [&](char c) { return at_ < text_.size() && text_[at_] == c; };
  const auto digits = [&] {
    if (!digit()) fail_expected("a digit");
    while (digit()) ++at_;
  };
  bool integer = true;
  if (is('-')) ++at_;
  if (is('0')) {
    ++at_;
    if (digit()) fail_value("a number with a leading zero");
  } else {
    digits();
  }
  if (is('.')) {
    ++at_, integer = false;
    digits();
  }
  if (is('e') || is('E')) {
    ++at_, integer = false;
    if (is('+') || is('-')) ++at_;
    digits();
  }
  return {text_.substr(value_, at_ - value_), integer};
}

std::uint64_t JsonReader::u64() {
  const Number n = take_number();
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(n.text.data(), n.text.data() + n.text.size(), value);
  if (!n.integer || n.text[0] == '-' || error != std::errc()) {
    fail_value(fmt::format("expected an integer from 0 to 2^64 - 1, found {}", printable(n.text)));
  }
  return value;
}

std::int64_t JsonReader::i64() {
  const Number n = take_number();
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(n.text.data(), n.text.data() + n.text.size(), value);
  if (!n.integer || error != std::errc()) {
    fail_value(fmt::format("expected an integer of 64 bits, found {}", printable(n.text)));
  }
  return value;
}

double JsonReader::number() {
  const Number n = take_number();
  double value = 0;
  const auto [end, error] = std::from_chars(n.text.data(), n.text.data() + n.text.size(), value);
  if (error != std::errc()) {
    fail_value(fmt::format("number {} is out of range", printable(n.text)));
  }
  return value;
}

std::string_view JsonReader::number_text() { return take_number().text; }

void JsonReader::take_word(std::string_view word) {
  if (text_.substr(at_, word.size()) != word) fail_here("expected true, false or null");
  at_ += word.size();
}

bool JsonReader::boolean() {
  begin_value(Kind::boolean);
  const bool value = text_[at_] == 't';
  take_word(value ? "true" : "false");
  return value;
}

void JsonReader::null() {
  begin_value(Kind::null);
  take_word("null");
}

void JsonReader::skip_one() {
  switch (peek()) {
    case Kind::object:
      return open_object();
    case Kind::array:
      return open_array();
    case Kind::string:
      string();
      return;
    case Kind::number:
      take_number();
      return;
    case Kind::boolean:
      boolean();
      return;
    case Kind::null:
      return null();
  }
}

void JsonReader::skip() {
  const int outside = depth_;
  skip_one();
  while (depth_ > outside) {
    std::string_view key;
    if (in_object() ? next_key(key) : next_element()) skip_one();
  }
}

void JsonReader::finish() {
  check(depth_ == 0, "finish inside an object or array");
  skip_space();
  if (at_ < text_.size()) fail_expected("the end of the text");
}

}  // namespace ballast
