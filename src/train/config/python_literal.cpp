#include "train/config/python_literal.h"

#include <charconv>

namespace ballast::train {
namespace {

constexpr int kMaxDepth = 8;

class Parser {
 public:
  explicit Parser(std::string_view text) : rest_(text) {}

  std::optional<PythonLiteral> parse() {
    skip_space();
    if (rest_.starts_with("None") && trimmed_is("None")) return PythonNone{};
    auto value = this->value(0);
    skip_space();
    if (value && rest_.starts_with(',')) value = tuple_from(*std::move(value));
    if (!value || !rest_.empty()) return std::nullopt;
    return *std::move(value);
  }

 private:
  bool trimmed_is(std::string_view word) const {
    return rest_.substr(word.size()).find_first_not_of(" \t") == std::string_view::npos;
  }

  void skip_space() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\r\n"), rest_.size()));
  }

  bool take(std::string_view word) {
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }

  std::optional<TomlValue> value(int depth) {
    skip_space();
    if (take("True")) return boolean(true);
    if (take("False")) return boolean(false);
    if (take("(")) return list(')', depth + 1);
    if (take("[")) return list(']', depth + 1);
    const bool raw = rest_.starts_with("r'") || rest_.starts_with("r\"");
    if (raw) rest_.remove_prefix(1);
    if (rest_.starts_with('\'') || rest_.starts_with('"')) return string(raw);
    return number();
  }

  static TomlValue boolean(bool b) {
    TomlValue v;
    v.kind = TomlValue::Kind::boolean;
    v.boolean = b;
    return v;
  }

  std::optional<TomlValue> list(char close, int depth) {
    if (depth > kMaxDepth) return std::nullopt;
    TomlValue v;
    v.kind = TomlValue::Kind::array;
    for (;;) {
      skip_space();
      if (take({&close, 1})) return v;
      auto item = value(depth);
      if (!item) return std::nullopt;
      v.items.push_back(*std::move(item));
      skip_space();
      if (!take(",") && !rest_.starts_with(close)) return std::nullopt;
    }
  }

  // A tuple needs no parentheses: betas=0.9,0.99.
  std::optional<TomlValue> tuple_from(TomlValue first) {
    TomlValue v;
    v.kind = TomlValue::Kind::array;
    v.items.push_back(std::move(first));
    while (take(",")) {
      skip_space();
      if (rest_.empty()) break;
      auto item = value(1);
      if (!item) return std::nullopt;
      v.items.push_back(*std::move(item));
      skip_space();
    }
    return v;
  }

  std::optional<TomlValue> string(bool raw) {
    const char quote = rest_.front();
    rest_.remove_prefix(1);
    TomlValue v;
    v.kind = TomlValue::Kind::string;
    while (!rest_.empty() && rest_.front() != quote) {
      // Of escapes only \\ and quotes change; Python leaves \. and \d as they are, too.
      if (rest_.front() == '\\' && rest_.size() > 1) {
        const char next = rest_[1];
        if (raw || (next != '\\' && next != '\'' && next != '"')) v.string += '\\';
        v.string += next;
        rest_.remove_prefix(2);
      } else {
        v.string += rest_.front();
        rest_.remove_prefix(1);
      }
    }
    if (rest_.empty()) return std::nullopt;
    rest_.remove_prefix(1);
    return v;
  }

  std::optional<TomlValue> number() {
    const std::size_t length = std::min(rest_.find_first_not_of("+-.0123456789eE"), rest_.size());
    const std::string_view text = rest_.substr(0, length);
    const char* end = text.data() + text.size();
    TomlValue v;
    v.kind = TomlValue::Kind::integer;
    const auto integer = std::from_chars(text.data(), end, v.integer);
    if (text.empty() || integer.ec != std::errc() || integer.ptr != end) {
      v.kind = TomlValue::Kind::real;
      const auto real = std::from_chars(text.data(), end, v.real);
      if (text.empty() || real.ec != std::errc() || real.ptr != end) return std::nullopt;
    }
    rest_.remove_prefix(length);
    return v;
  }

  std::string_view rest_;
};

}  // namespace

std::optional<PythonLiteral> parse_python_literal(std::string_view text) {
  return Parser(text).parse();
}

}  // namespace ballast::train
