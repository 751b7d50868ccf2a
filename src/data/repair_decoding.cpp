#include "data/repair_decoding.h"

#include <algorithm>
#include <array>

#include "data/unicode_text.h"

namespace ballast::data {
namespace {

constexpr std::array<char32_t, 32> kC1 = {
    0x20ac, 0x81,   0x201a, 0x192,  0x201e, 0x2026, 0x2020, 0x2021, 0x2c6,  0x2030, 0x160,
    0x2039, 0x152,  0x8d,   0x17d,  0x8f,   0x90,   0x2018, 0x2019, 0x201c, 0x201d, 0x2022,
    0x2013, 0x2014, 0x2dc,  0x2122, 0x161,  0x203a, 0x153,  0x9d,   0x17e,  0x178};

// The byte that a reader of Windows-1252 or Latin-1 took for this character; 0: none above ASCII.
unsigned char byte_of(char32_t c) {
  if (c <= 0xff) return c < 0x80 ? 0 : static_cast<unsigned char>(c);
  if (c > 0x2122) return 0;
  const auto at = std::ranges::find(kC1, c);
  return at == kC1.end() ? 0 : static_cast<unsigned char>(0x80 + (at - kC1.begin()));
}

bool continues(unsigned char b) { return b >= 0x80 && b <= 0xbf; }

std::size_t length_of(unsigned char lead) {
  return lead >= 0xf0 && lead <= 0xf4   ? 4
         : lead >= 0xe0 && lead <= 0xef ? 3
         : lead >= 0xc2 && lead <= 0xdf ? 2
                                        : 0;
}

struct Sequence {
  char32_t code = 0;       // what it stands for
  std::size_t length = 0;  // characters of the damaged text; 0: there is none
};

// The UTF-8 sequence that begins at `at`.
Sequence sequence_at(std::u32string_view text, std::size_t at) {
  const unsigned char lead = byte_of(text[at]);
  const std::size_t n = length_of(lead);
  if (n == 0 || at + n > text.size()) return {};
  std::string bytes(1, static_cast<char>(lead));
  for (std::size_t i = 1; i < n; ++i) {
    // What a program could not show, it replaced: of three bytes the last one is often lost.
    if (n >= 3 && i + 1 == n && text[at + i] == 0xfffd) return {0xfffd, n};
    const unsigned char b = byte_of(text[at + i]);
    if (!continues(b)) return {};
    bytes += static_cast<char>(b);
  }
  // Surrogates may have been encoded one by one.
  const std::u32string decoded = decode_utf8(bytes);
  if (decoded.size() != 1 || decoded[0] == 0xfffd || decoded[0] < 0x80) return {};
  return {decoded[0], n};
}

// Signs that stand behind a capital letter with an accent in ordinary text: closing quotes, dashes,
// dots, degrees, trade marks.
bool follows_words(char32_t c) {
  constexpr std::u32string_view kSigns =
      U"\u00bb\u00ab\u201c\u201d\u2018\u2019\u2026\u2013\u2014\u203a\u2039\u2022\u00a0\u00ae\u2122"
      U"\u00b0\u00ba\u00aa\u00b2\u00b3\u00b9\u00b4\u00b7";
  return kSigns.find(c) != std::u32string_view::npos;
}

// Whether the sequence cannot well be meant. Three such characters in a row are no text; two are
// none where the first is what nearly all of Latin-1 begins with, or the second no sign that ends
// words.
bool is_damage(std::u32string_view text, std::size_t at, const Sequence& s) {
  if (s.length >= 3) return true;
  const char32_t lead = text[at];
  return lead == 0xc2 || lead == 0xc3 || !follows_words(text[at + 1]);
}

bool is_letter_or_digit(char32_t c) {
  return (c >= U'a' && c <= U'z') || (c >= U'A' && c <= U'Z') || (c >= U'0' && c <= U'9') ||
         c >= 0xc0;
}

}  // namespace

char32_t windows_1252(unsigned i) { return kC1[i]; }

std::u32string repair_decoding(std::u32string_view text) {
  std::u32string out;
  bool repaired = false;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    // A run of sequences without a gap: one that is damaged shows that all are.
    std::u32string run;
    std::size_t end = at, sequences = 0;
    bool damage = false;
    while (end < text.size()) {
      const Sequence s = sequence_at(text, end);
      if (s.length == 0) break;
      damage = damage || is_damage(text, end, s);
      run += s.code;
      end += s.length;
      ++sequences;
    }
    if (damage || sequences > 1) {
      out += run;
      repaired = true;
      at = end;
    } else {
      out += text[at++];
    }
  }
  if (!repaired) return out;
  // "Ã " before a word, beside other damage: the second byte of "à" was a space that does not
  // break, which became one that does.
  std::u32string spaced;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const bool alone = out[i] == 0xc3 && (i == 0 || !is_letter_or_digit(out[i - 1])) &&
                       i + 2 < out.size() && (out[i + 1] == U' ' || out[i + 1] == 0xa0) &&
                       is_letter_or_digit(out[i + 2]);
    spaced += alone ? 0xe0 : out[i];
  }
  return spaced;
}

}  // namespace ballast::data
