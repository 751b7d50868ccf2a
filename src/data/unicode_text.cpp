#include "data/unicode_text.h"

#include <algorithm>
#include <array>
#include <span>
#include <unordered_map>
#include <vector>

#include "data/unicode_tables.h"
#include "io/utf8.h"

namespace ballast::data {
namespace {

// Rows of three numbers, sorted by the first: the last row that begins at or before `code`.
const std::uint32_t* row_before(std::span<const std::uint32_t> rows, char32_t code) {
  std::size_t low = 0, high = rows.size() / 3;
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    if (rows[3 * middle] <= code) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low == 0 ? nullptr : &rows[3 * (low - 1)];
}

std::uint32_t class_of(std::span<const std::uint32_t> ranges, char32_t code) {
  const std::uint32_t* row = row_before(ranges, code);
  return row != nullptr && code <= row[1] ? row[2] : 0;
}

enum class Cluster : std::uint32_t { other, control, extend, spacing_mark, prepend };

Cluster cluster_class(char32_t c) {
  if (c >= 0x20 && c < 0x7f) return Cluster::other;
  return static_cast<Cluster>(class_of(cluster_classes(), c));
}

// U+00A9 and U+00AE, a joiner and another picture are one cluster; all other pictures are too long.
bool is_picture(char32_t c) {
  return c == 0xa9 || c == 0xae || (c >= 0x2190 && c <= 0x21ff) || (c >= 0x2300 && c <= 0x23ff) ||
         (c >= 0x2600 && c <= 0x27bf) || (c >= 0x2b00 && c <= 0x2bff) ||
         (c >= 0x1f000 && c <= 0x1faff && !(c >= 0x1f1e6 && c <= 0x1f1ff) &&
          !(c >= 0x1f3fb && c <= 0x1f3ff));
}

// Hangul syllables, by the formulas of the standard's section 3.12.
constexpr char32_t kSyllable = 0xac00, kLead = 0x1100, kVowel = 0x1161, kTail = 0x11a7;
constexpr char32_t kLeads = 19, kVowels = 21, kTails = 28;

// Pairs that compose, and single code points that come apart.
class Compositions {
 public:
  Compositions() {
    const auto rows = compositions();
    for (std::size_t i = 0; i < rows.size(); i += 3) {
      const char32_t code = rows[i] >> 1;
      parts_[code] = {rows[i + 1], rows[i + 2]};
      if (rows[i] % 2 != 0) whole_[key(rows[i + 1], rows[i + 2])] = code;
    }
  }

  void decompose(char32_t c, std::u32string& out) const {
    if (c >= kSyllable && c < kSyllable + kLeads * kVowels * kTails) {
      const char32_t s = c - kSyllable;
      out += kLead + s / (kVowels * kTails);
      out += kVowel + s / kTails % kVowels;
      if (s % kTails != 0) out += kTail + s % kTails;
      return;
    }
    const auto found = c < 0xc0 ? parts_.end() : parts_.find(c);
    if (found == parts_.end()) {
      out += c;
      return;
    }
    decompose(found->second[0], out);
    if (found->second[1] != 0) out += found->second[1];  // a second part never comes apart
  }

  char32_t compose(char32_t a, char32_t b) const {  // 0 where they do not
    if (a >= kLead && a < kLead + kLeads && b >= kVowel && b < kVowel + kVowels) {
      return kSyllable + ((a - kLead) * kVowels + (b - kVowel)) * kTails;
    }
    if (a >= kSyllable && a < kSyllable + kLeads * kVowels * kTails &&
        (a - kSyllable) % kTails == 0 && b > kTail && b < kTail + kTails) {
      return a + (b - kTail);
    }
    const auto found = whole_.find(key(a, b));
    return found == whole_.end() ? 0 : found->second;
  }

 private:
  static std::uint64_t key(char32_t a, char32_t b) { return std::uint64_t{a} << 32 | b; }

  std::unordered_map<char32_t, std::array<char32_t, 2>> parts_;
  std::unordered_map<std::uint64_t, char32_t> whole_;
};

}  // namespace

Character character_at(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (length > text.size() || first_invalid_utf8(text.substr(0, length))) return {0xfffd, 1};
  char32_t code = lead & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) code = code << 6 | (byte(i) & 0x3f);
  return {code, length};
}

std::string well_formed(std::string_view text) {
  std::string out;
  while (const auto bad = first_invalid_utf8(text)) {
    out += text.substr(0, *bad);
    append_utf8(out, 0xfffd);
    text.remove_prefix(*bad + 1);
  }
  return out += text;
}

std::u32string decode_utf8(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    Character c = character_at(text);
    const bool surrogate = text.size() >= 3 && byte(0) == 0xed && byte(1) >= 0xa0 &&
                           byte(1) <= 0xbf && byte(2) >= 0x80 && byte(2) <= 0xbf;
    if (surrogate) c = {0xd000u | (byte(1) & 0x3fu) << 6 | (byte(2) & 0x3fu), 3};
    out += c.code;
    text.remove_prefix(c.length);
  }
  return out;
}

std::string encode_utf8(std::u32string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char32_t c : text) append_utf8(out, c >= 0xd800 && c <= 0xdfff ? 0xfffd : c);
  return out;
}

bool is_white_space(char32_t c) {
  return (c >= 0x9 && c <= 0xd) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

std::size_t cluster_length(std::string_view text) {
  Character c = character_at(text);
  std::size_t length = c.length;
  if (c.code == '\r' && text.substr(1).starts_with('\n')) return 2;
  Cluster before = cluster_class(c.code);
  if (before == Cluster::control) return length;
  const bool picture = is_picture(c.code);
  bool joined = false;
  while (length < text.size()) {
    c = character_at(text.substr(length));
    const Cluster next = cluster_class(c.code);
    const bool extends = next == Cluster::extend || next == Cluster::spacing_mark ||
                         (before == Cluster::prepend && next != Cluster::control) ||
                         (picture && joined && is_picture(c.code));
    if (!extends) break;
    length += c.length;
    joined = c.code == 0x200d;
    before = next;
  }
  return length;
}

std::u32string canonical_composition(std::u32string_view text) {
  // Below U+0300 nothing comes apart for good and nothing composes.
  const auto plain = [](char32_t c) { return c < 0x300; };
  if (std::all_of(text.begin(), text.end(), plain)) return std::u32string(text);
  static const Compositions table;
  std::u32string parts;
  parts.reserve(text.size());
  for (const char32_t c : text) table.decompose(c, parts);

  const auto class_at = [](char32_t c) { return c < 0x300 ? 0 : class_of(combining_classes(), c); };
  std::vector<std::uint32_t> classes(parts.size());
  std::transform(parts.begin(), parts.end(), classes.begin(), class_at);
  for (std::size_t i = 0; i < parts.size();) {  // marks in order of their class
    std::size_t end = i;
    while (end < parts.size() && classes[end] != 0) ++end;
    if (end > i + 1) {
      std::stable_sort(parts.begin() + static_cast<std::ptrdiff_t>(i),
                       parts.begin() + static_cast<std::ptrdiff_t>(end),
                       [&](char32_t a, char32_t b) { return class_at(a) < class_at(b); });
      std::transform(parts.begin() + static_cast<std::ptrdiff_t>(i),
                     parts.begin() + static_cast<std::ptrdiff_t>(end),
                     classes.begin() + static_cast<std::ptrdiff_t>(i), class_at);
    }
    i = std::max(end, i + 1);
  }

  // Each character joins the last starter unless one of its class or a higher one stands between.
  std::size_t written = 0, starter = 0;
  bool has_starter = false;
  std::uint32_t last_class = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const bool blocked = written > starter + 1 && (last_class == 0 || last_class >= classes[i]);
    if (has_starter && !blocked) {
      if (const char32_t whole = table.compose(parts[starter], parts[i]); whole != 0) {
        parts[starter] = whole;
        continue;
      }
    }
    if (classes[i] == 0) {
      starter = written;
      has_starter = true;
    }
    last_class = classes[i];
    parts[written++] = parts[i];
  }
  parts.resize(written);
  return parts;
}

}  // namespace ballast::data
