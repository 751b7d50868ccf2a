#include "io/json_reader.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/error.h"
#include "core/to_size.h"
#include "io/utf8.h"

namespace ballast {
namespace {

constexpr std::string_view kEscapes = "\"\\/bfnrt";
constexpr std::string_view kEscaped = "\"\\/\b\f\n\r\t";

// What a byte may be, as bits. A table: a hostile header is a hundred million bytes of whatever
// takes longest, and every byte is looked at.
enum : std::uint8_t {
  kSpace = 1,
  kDigit = 2,
  kHexDigit = 4,
  kSpecial = 8,    // ends a plain run inside a string: quote, backslash, what may not stand there
  kEscape = 16,    // may follow a backslash
  kFraction = 32,  // makes an integer another number
};
constexpr std::array<std::uint8_t, 256> kBytes = [] {
  std::array<std::uint8_t, 256> bytes{};
  const auto mark = [&](std::string_view which, std::uint8_t bit) {
    for (const char c : which) bytes[static_cast<unsigned char>(c)] |= bit;
  };
  mark(" \t\n\r", kSpace);
  mark("0123456789", kDigit);
  mark("0123456789abcdefABCDEF", kHexDigit);
  mark("\"\\", kSpecial);
  for (std::size_t c = 0; c < 0x20; ++c) bytes[c] |= kSpecial;
  mark(kEscapes, kEscape);
  mark(".eE", kFraction);
  return bytes;
}();

bool is(char c, std::uint8_t bit) { return (kBytes[static_cast<unsigned char>(c)] & bit) != 0; }

const char* past(std::uint8_t bit, const char* p, const char* end) {
  while (p != end && is(*p, bit)) ++p;
  return p;
}

// The grammar of numbers: where the one at p ends, or where it goes wrong.
struct NumberEnd {
  enum class Kind { integer, real, no_digit, leading_zero };
  const char* at;
  Kind kind;
};
NumberEnd number_end(const char* p, const char* end) {
  using Kind = NumberEnd::Kind;
  const auto at = [&](char c) { return p != end && *p == c; };
  const auto digits = [&] {
    const char* const first = p;
    p = past(kDigit, p, end);
    return p != first;
  };
  if (at('-')) ++p;
  if (at('0')) {
    ++p;
    if (p != end && is(*p, kDigit)) return {p, Kind::leading_zero};
  } else if (!digits()) {
    return {p, Kind::no_digit};
  }
  if (p == end || !is(*p, kFraction)) return {p, Kind::integer};
  if (at('.')) {
    ++p;
    if (!digits()) return {p, Kind::no_digit};
  }
  if (at('e') || at('E')) {
    ++p;
    if (at('+') || at('-')) ++p;
    if (!digits()) return {p, Kind::no_digit};
  }
  return {p, Kind::real};
}

// The ends of values that can be told to be right without decoding them; nullptr for all others,
// right or wrong.

// A string without surrogates (\ud...) among its escapes.
const char* plain_string_end(const char* p, const char* end) {
  if (p == end || *p != '"') return nullptr;
  for (++p; p != end;) {
    if (!is(*p, kSpecial)) {
      ++p;
    } else if (*p == '"') {
      return p + 1;
    } else if (*p == '\\' && end - p >= 2 && is(p[1], kEscape)) {
      p += 2;
    } else if (*p == '\\' && end - p >= 6 && p[1] == 'u' && p[2] != 'd' && p[2] != 'D' &&
               past(kHexDigit, p + 2, p + 6) == p + 6) {
      p += 6;
    } else {
      return nullptr;
    }
  }
  return nullptr;
}

// Neither object nor array.
const char* plain_value_end(const char* p, const char* end) {
  if (*p == '"') return plain_string_end(p, end);
  if (*p == '-' || is(*p, kDigit)) {
    const NumberEnd number = number_end(p, end);
    const bool right =
        number.kind == NumberEnd::Kind::integer || number.kind == NumberEnd::Kind::real;
    return right ? number.at : nullptr;
  }
  for (const std::string_view word : {"true", "false", "null"}) {
    if (*p == word.front())
      return std::string_view(p, end).starts_with(word) ? p + word.size() : nullptr;
  }
  return nullptr;
}

}  // namespace

std::string_view name_of(JsonReader::Kind kind) {
  constexpr std::array<std::string_view, 6> kNames = {"an object", "an array",      "a string",
                                                      "a number",  "true or false", "null"};
  return kNames[to_size(kind)];
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
    const std::string_view key = keys_[to_size(level)];
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
  while (at_ < text_.size() && is(text_[at_], kSpace)) ++at_;
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
  if (c == '-' || is(c, kDigit)) return Kind::number;
  if (c == 't' || c == 'f') return Kind::boolean;
  if (c == 'n') return Kind::null;
  fail_expected("a value");
}

void JsonReader::begin_value(Kind kind) {
  const Kind is = peek();
  value_ = at_;
  if (is != kind) fail_here(fmt::format("expected {}, found {}", name_of(kind), name_of(is)));
}

void JsonReader::open(bool object) {
  begin_value(object ? Kind::object : Kind::array);
  ++at_;
  if (depth_ == max_depth_) fail_value(fmt::format("nested deeper than {} levels", max_depth_));
  enter(object);
}

void JsonReader::enter(bool object) {
  ++depth_;
  const std::uint64_t level = 1ull << depth_;
  objects_ = object ? objects_ | level : objects_ & ~level;
  begun_ &= ~level;
  keys_[to_size(depth_)] = {};
}

void JsonReader::open_object() { open(true); }
void JsonReader::object(const std::vector<Member>& members) {
  open_object();
  for (std::string_view key; next_key(key);) {
    const auto member = std::ranges::find(members, key, &Member::key);
    member == members.end() ? skip() : member->read();
  }
}

void JsonReader::open_array() { open(false); }

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
  keys_[to_size(depth_)] = text_.substr(begin, at_ - 1 - begin);
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
    while (at_ < text_.size() && !is(text_[at_], kSpecial)) ++at_;
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
  if (is(c, kEscape)) {
    decoded_ += kEscaped[kEscapes.find(c)];
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
  const NumberEnd end = number_end(text_.data() + at_, text_.data() + text_.size());
  at_ = to_size(end.at - text_.data());
  if (end.kind == NumberEnd::Kind::no_digit) fail_expected("a digit");
  if (end.kind == NumberEnd::Kind::leading_zero) fail_value("a number with a leading zero");
  return {text_.substr(value_, at_ - value_), end.kind == NumberEnd::Kind::integer};
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

std::int64_t JsonReader::i64(std::int64_t least, std::int64_t most) {
  const std::int64_t value = i64();
  if (value < least || value > most) {
    fail_value(fmt::format("{} is not between {} and {}", value, least, most));
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

// From behind a member or an opening bracket: takes what is plain, in this level and the ones it
// opens and closes, until the level `outside` is reached. Stops in front of the first member that
// is not plain, so that the ordinary functions read it again and say what is wrong with it.
void JsonReader::skip_plain(int outside) {
  const char* const end = text_.data() + text_.size();
  const char* p = text_.data() + at_;
  while (depth_ > outside) {
    const std::uint64_t level = 1ull << depth_;
    const bool object = in_object();
    const char* q = past(kSpace, p, end);
    if (q == end) break;
    if (*q == (object ? '}' : ']')) {
      --depth_;
      p = q + 1;
      continue;
    }
    if ((begun_ & level) != 0) {
      if (*q != ',') break;
      q = past(kSpace, q + 1, end);
    }
    if (object) {
      const char* const key = q;
      q = plain_string_end(key, end);
      if (q == nullptr) break;
      keys_[to_size(depth_)] = std::string_view(key + 1, q - 1);
      q = past(kSpace, q, end);
      if (q == end || *q != ':') break;
      q = past(kSpace, q + 1, end);
    }
    if (q == end) break;
    if (*q == '[' || *q == '{') {
      if (depth_ == max_depth_) break;
      begun_ |= level;
      p = q + 1;
      enter(*q == '{');
      continue;
    }
    q = plain_value_end(q, end);
    if (q == nullptr) break;
    begun_ |= level;
    p = q;
    // Most of what an array holds needs no look at its level.
    while (!object && end - p >= 2 && *p == ',' && (q = plain_value_end(p + 1, end)) != nullptr) {
      p = q;
    }
  }
  at_ = to_size(p - text_.data());
}

void JsonReader::skip() {
  skip_space();
  const char* const begin = text_.data() + at_;
  const char* const end = text_.data() + text_.size();
  if (const char* p = begin == end ? nullptr : plain_value_end(begin, end)) {
    value_ = std::exchange(at_, to_size(p - text_.data()));
    return;
  }
  const int outside = depth_;
  skip_one();
  while (depth_ > outside) {
    skip_plain(outside);
    std::string_view key;
    if (depth_ > outside && (in_object() ? next_key(key) : next_element())) skip_one();
  }
}

void JsonReader::finish() {
  check(depth_ == 0, "finish inside an object or array");
  skip_space();
  if (at_ < text_.size()) fail_expected("the end of the text");
}

}  // namespace ballast
