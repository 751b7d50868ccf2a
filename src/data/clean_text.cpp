#include "data/clean_text.h"

#include <algorithm>
#include <utility>

#include "data/html_entities.h"
#include "data/repair_decoding.h"
#include "data/unicode_tables.h"
#include "data/unicode_text.h"

namespace ballast::data {
namespace {

struct Ligature {
  char32_t code;
  std::u32string_view letters;
};
constexpr Ligature kLigatures[] = {
    {0x132, U"IJ"},       {0x133, U"ij"},      {0x149, U"\u02bcn"}, {0x1c4, U"D\u017d"},
    {0x1c5, U"D\u017e"},  {0x1c6, U"d\u017e"}, {0x1c7, U"LJ"},      {0x1c8, U"Lj"},
    {0x1c9, U"lj"},       {0x1ca, U"NJ"},      {0x1cb, U"Nj"},      {0x1cc, U"nj"},
    {0x1f1, U"DZ"},       {0x1f2, U"Dz"},      {0x1f3, U"dz"},      {0xfb00, U"ff"},
    {0xfb01, U"fi"},      {0xfb02, U"fl"},     {0xfb03, U"ffi"},    {0xfb04, U"ffl"},
    {0xfb05, U"\u017ft"}, {0xfb06, U"st"},
};

// What ftfy does character by character: C1 controls, ligatures, widths, quotes. They do not feed
// each other within a pass; passes are repeated until nothing changes.
void append_fixed(std::u32string& out, char32_t c) {
  if (c >= 0x80 && c <= 0x9f) c = windows_1252(c - 0x80);
  if (c == 0x3000) {
    out += U' ';
  } else if (c >= 0xff01 && c <= 0xffef) {
    const auto rows = width_forms();
    for (std::size_t i = 0; i < rows.size(); i += 3) {
      if (rows[i] != c) continue;
      out += rows[i + 1];
      if (rows[i + 2] != 0) out += rows[i + 2];
      return;
    }
    out += c;
  } else if (c == 0x2bc || (c >= 0x2018 && c <= 0x201b)) {
    out += U'\'';
  } else if (c >= 0x201c && c <= 0x201f) {
    out += U'"';
  } else {
    const auto* found = std::find_if(std::begin(kLigatures), std::end(kLigatures),
                                     [c](const Ligature& l) { return l.code == c; });
    if (found == std::end(kLigatures)) {
      out += c;
    } else {
      for (const char32_t letter : found->letters) out += letter == 0x2bc ? U'\'' : letter;
    }
  }
}

std::u32string fix_line_breaks(std::u32string_view text) {
  std::u32string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char32_t c = text[i];
    if (c == U'\r' && i + 1 < text.size() && text[i + 1] == U'\n') continue;
    out += c == U'\r' || c == 0x2028 || c == 0x2029 || c == 0x85 ? U'\n' : c;
  }
  return out;
}

std::u32string join_surrogates(std::u32string_view text) {
  std::u32string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char32_t c = text[i];
    const char32_t next = i + 1 < text.size() ? text[i + 1] : 0;
    if (c >= 0xd800 && c <= 0xdbff && next >= 0xdc00 && next <= 0xdfff) {
      out += 0x10000 + ((c - 0xd800) << 10) + (next - 0xdc00);
      ++i;
    } else {
      out += c >= 0xd800 && c <= 0xdfff ? 0xfffd : c;
    }
  }
  return out;
}

// ESC [ digits and semicolons, letter.
std::u32string remove_terminal_escapes(std::u32string_view text) {
  std::u32string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == 0x1b && i + 1 < text.size() && text[i + 1] == U'[') {
      std::size_t end = i + 2;
      while (end < text.size() && ((text[end] >= U'0' && text[end] <= U'9') || text[end] == U';')) {
        ++end;
      }
      const char32_t letter = end < text.size() ? text[end] | 0x20 : 0;
      if (letter >= U'a' && letter <= U'z') {
        i = end;
        continue;
      }
    }
    out += text[i];
  }
  return out;
}

bool is_control(char32_t c) {
  return c <= 0x8 || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f ||
         (c >= 0x206a && c <= 0x206f) || c == 0xfeff || (c >= 0xfff9 && c <= 0xfffc);
}

std::u32string fix_characters(std::u32string_view text) {
  std::u32string damaged, repaired(text);
  do {  // before anything else changes what was damaged more than once
    damaged = std::exchange(repaired, repair_decoding(repaired));
  } while (repaired.size() < damaged.size());
  std::u32string out;
  for (const char32_t c : repaired) append_fixed(out, c);
  out = remove_terminal_escapes(join_surrogates(fix_line_breaks(out)));
  std::erase_if(out, is_control);
  return canonical_composition(out);
}

// Passes over one line. Two are the rule; only references inside references take more, and text
// that nests them deeper than this was made to waste time.
constexpr int kMaxPasses = 64;

// As ftfy.fix_text() is documented, one line at a time.
std::string fix_text(std::string_view text) {
  std::string out;
  bool html = true;  // until a line has what looks like a tag
  while (!text.empty()) {
    const std::size_t feed = text.find('\n');
    const std::size_t end = feed == std::string_view::npos ? text.size() : feed + 1;
    std::string line(text.substr(0, end));
    text.remove_prefix(end);
    html = html && line.find('<') == std::string::npos;
    bool unescape = html;
    std::string before;
    for (int pass = 0; pass < kMaxPasses && before != line; ++pass) {
      before = line;
      unescape = unescape && line.find('<') == std::string::npos;
      if (unescape) line = unescape_html_strictly(line);
      line = encode_utf8(fix_characters(decode_utf8(line)));
    }
    out += line;
  }
  return out;
}

}  // namespace

std::string clean_text(std::string_view text) {
  const std::string fixed = unescape_html(unescape_html(fix_text(text)));
  std::string out;
  bool space = false;
  for (std::string_view rest = fixed; !rest.empty();) {
    const Character c = character_at(rest);
    // Python also takes the separators U+001C..U+001F for white space.
    if (is_white_space(c.code) || (c.code >= 0x1c && c.code <= 0x1f)) {
      space = true;
    } else {
      if (space && !out.empty()) out += ' ';
      space = false;
      out += rest.substr(0, c.length);
    }
    rest.remove_prefix(c.length);
  }
  return out;
}

}  // namespace ballast::data
