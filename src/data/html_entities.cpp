#include "data/html_entities.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "data/repair_decoding.h"
#include "data/unicode_text.h"
#include "io/utf8.h"

namespace ballast::data {
namespace {

constexpr std::size_t kLongestName = 32;    // in characters, as Python's expression has it
constexpr std::size_t kLongestStrict = 24;  // as ftfy's

struct Entity {
  std::string_view name, value;
};

// One of the lists above, sorted already.
class EntityTable {
 public:
  EntityTable(std::string_view text, bool values) {
    while (!text.empty()) {
      const std::size_t name = text.find_first_of("= ");
      const std::size_t end = values ? text.find(' ', name) : name;
      entities_.push_back({text.substr(0, name),
                           values ? text.substr(name + 1, end - name - 1) : std::string_view()});
      text.remove_prefix(end + 1);
    }
  }

  std::optional<std::string_view> find(std::string_view name) const {
    const auto at =
        std::lower_bound(entities_.begin(), entities_.end(), name,
                         [](const Entity& e, std::string_view n) { return e.name < n; });
    if (at == entities_.end() || at->name != name) return std::nullopt;
    return at->value;
  }

 private:
  std::vector<Entity> entities_;
};

const EntityTable& names() {
  static const EntityTable table(kEntityNames, true);
  return table;
}
const EntityTable& bare_names() {
  static const EntityTable table(kBareEntityNames, false);
  return table;
}
const EntityTable& upper_values() {
  static const EntityTable table(kUpperEntities, true);
  return table;
}

bool is_digit(char c, bool hex) {
  return (c >= '0' && c <= '9') || (hex && ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')));
}
bool is_letter_or_digit(char c) {
  return is_digit(c, false) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

void append_number(std::string& out, std::uint64_t n) {
  // Windows-1252 where Unicode has C1 controls; five places have no meaning there.
  if (n >= 0x80 && n <= 0x9f)
    return append_utf8(out, windows_1252(static_cast<unsigned>(n - 0x80)));
  if (n == 0 || (n >= 0xd800 && n <= 0xdfff) || n > 0x10ffff) return append_utf8(out, 0xfffd);
  const bool nothing = n <= 0x8 || n == 0xb || (n >= 0xe && n <= 0x1f) || n == 0x7f ||
                       (n >= 0xfdd0 && n <= 0xfdef) || (n & 0xfffe) == 0xfffe;
  if (!nothing) append_utf8(out, static_cast<char32_t>(n));
}

// "#38;" or "#x26": bytes behind the ampersand, 0 when it is none; appends what it stands for.
std::size_t take_number(std::string_view text, std::string& out) {
  const bool hex = text.size() > 1 && (text[1] == 'x' || text[1] == 'X');
  const std::size_t begin = hex ? 2 : 1;
  std::size_t at = begin;
  std::uint64_t n = 0;
  for (; at < text.size() && is_digit(text[at], hex); ++at) {
    const char c = text[at];
    const int digit = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
    n = std::min<std::uint64_t>(n * (hex ? 16 : 10) + static_cast<std::uint64_t>(digit), 0x110000);
  }
  if (at == begin) return 0;
  append_number(out, n);
  return at < text.size() && text[at] == ';' ? at + 1 : at;
}

std::size_t take_name(std::string_view text, std::string& out) {
  std::size_t end = 0;
  for (std::size_t n = 0; n < kLongestName && end < text.size(); ++n) {
    if (std::string_view("\t\n\f <&#;").find(text[end]) != std::string_view::npos) break;
    end += character_at(text.substr(end)).length;
  }
  if (end == 0) return 0;
  if (end < text.size() && text[end] == ';') {
    if (const auto value = names().find(text.substr(0, end))) return out += *value, end + 1;
  }
  for (std::size_t length = end; length > 1; --length) {
    const std::string_view name = text.substr(0, length);
    if (bare_names().find(name)) return out += *names().find(name), length;
  }
  return 0;
}

// `take` gets what is behind an ampersand, appends and says how much of it it took.
template <class Take>
std::string replace_references(std::string_view text, Take&& take) {
  std::string out;
  out.reserve(text.size());
  while (true) {
    const std::size_t mark = text.find('&');
    out += text.substr(0, mark);
    if (mark == std::string_view::npos) return out;
    text.remove_prefix(mark + 1);
    const std::size_t taken = take(text, out);
    if (taken == 0) out += '&';
    text.remove_prefix(taken);
  }
}

std::size_t take_strictly(std::string_view text, std::string& out) {
  std::size_t end = !text.empty() && text[0] == '#' ? 1 : 0;
  const std::size_t begin = end;
  while (end < text.size() && end - begin < kLongestStrict && is_letter_or_digit(text[end])) ++end;
  if (end == begin || end == text.size() || text[end] != ';') return 0;
  const std::string_view name = text.substr(0, end);
  if (begin == 1) {
    std::string value;
    if (take_number(text, value) != end + 1 || value.find(';') != std::string::npos) return 0;
    return out += value, end + 1;
  }
  if (const auto value = names().find(name)) return out += *value, end + 1;
  std::string small(name);
  for (char& c : small) {
    if (c >= 'a' && c <= 'z') return 0;
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 'a' - 'A');
  }
  const auto value = names().find(small);
  if (!value || small == name) return 0;
  // "&LTX;" begins with an old name and is not one of these.
  for (std::size_t length = end; length > 1; --length) {
    if (bare_names().find(name.substr(0, length))) return 0;
  }
  const auto upper = upper_values().find(small);
  return out += upper ? *upper : *value, end + 1;
}

}  // namespace

std::string unescape_html(std::string_view text) {
  return replace_references(text, [](std::string_view t, std::string& out) {
    return t.starts_with('#') ? take_number(t, out) : take_name(t, out);
  });
}

std::string unescape_html_strictly(std::string_view text) {
  return replace_references(text, take_strictly);
}

}  // namespace ballast::data
