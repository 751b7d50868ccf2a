#include "data/clean_text.h"

#include <gtest/gtest.h>

#include "core/random.h"
#include "data/html_entities.h"
#include "data/unicode_text.h"

namespace ballast::data::clean_text_test {
namespace {

struct Cleaned {
  std::string_view text, expected;
};

TEST(CleanText, DoesWhatFtfyAndWanDo) {
  using namespace std::string_view_literals;
  const Cleaned cases[] = {
      {"", ""},
      {"  a \t b\u00a0\u3000c\r\n d  ", "a b c d"},
      {"色调艳丽，过曝，静态", "色调艳丽,过曝,静态"},  // the width fix of the negative prompt
      {"Ｆｕｌｌ　ｗｉｄｔｈ！", "Full width!"},
      {"ｶﾞｷﾞ", "ガギ"},  // wide, then composed
      {"\u201cquoted\u201d \u2018it\u2019s\u2019", "\"quoted\" 'it's'"},
      {"ﬁne oﬃce ĳs ŉ", "fine office ijs 'n"},
      {"cafe\u0301", "café"},
      {"a\u0080b\u0092c\u0081d", "a\u20acb'c\u0081d"},  // Windows-1252, then the quote
      {"\x1b[1;31mred\x1b[0m", "red"},
      {"a\0b\x07"
       "c\x7f"
       "d\ufeff"
       "e\ufffb"sv,
       "abcde"},
      {"a\u2028b\u2029c", "a b c"},
      {"Tom &amp; Jerry &lt;3", "Tom & Jerry <3"},
      {"&amp;amp;amp;lt;", "<"},  // ftfy until nothing changes, then twice more
      {"<b>&EACUTE;&eacute;</b>", "<b>&EACUTE;é</b>"},  // a tag: only Python's own names
      {"&EACUTE;", "É"},
      {"a\nx < y\n&EACUTE;", "a x < y &EACUTE;"},  // a tag in an earlier line counts
      {"&notit; &#x80; &#0;", "¬it; \u20ac \ufffd"},
      {"\xed\xa0\xbd\xed\xb8\x80 \xed\xa0\xbd", "\U0001f600 \ufffd"},  // surrogates
      {"a\xff"
       "b",
       "a\ufffd"
       "b"},
      {"a\u200bb", "a\u200bb"},  // not white space for Python
  };
  for (const Cleaned& c : cases) EXPECT_EQ(clean_text(c.text), c.expected) << c.text;
}

TEST(CleanText, ComesToRestOnReferencesInsideReferences) {
  std::string text = "&";
  for (int i = 0; i < 20000; ++i) text += "amp;";
  EXPECT_LT(clean_text(text).size(), text.size());
}

TEST(CleanText, RepairsTextThatWasDecodedWrongly) {
  const Cleaned cases[] = {
      {"cafÃ© crÃ¨me", "café crème"},
      {"donâ€™t", "don't"},
      {"âœ” No problems", "✔ No problems"},
      {"cafÃƒÂ©", "café"},                                       // twice
      {"The Mona Lisa doesnÃƒÂ¢Ã¢â€šÂ¬Ã¢â€žÂ¢t have eyebrows.",  // three times
       "The Mona Lisa doesn't have eyebrows."},
      {"l’humanitÃ©", "l'humanité"},  // a part of it
      {"Ã\u00a0 perturber la rÃ©flexion", "à perturber la réflexion"},
      {"Ã perturber la rÃ©flexion", "à perturber la réflexion"},
      {"20Â°C, Â£5", "20°C, £5"},
      {"ÐŸÑ€Ð¸Ð²ÐµÑ‚", "Привет"},
      {"æ—¥æœ¬èªž", "日本語"},
      {"\u00e3\u0083\u0084", "ツ"},  // read as Latin-1
      {"ðŸ˜€", "😀"},
      {"smile ðŸ˜€ and cafÃ©", "smile 😀 and café"},
      {"ï»¿begin", "begin"},  // a byte order mark
      {"lost â€\ufffd here", "lost \ufffd here"},
      {"&Atilde;&copy;", "é"},  // references first
      // Meant as they stand.
      {"café, don’t, 日本語, naïve", "café, don't, 日本語, naïve"},
      {"«CAFÉ» À… É°", "«CAFÉ» À… É°"},
      {"SÃO PAULO, MÃE", "SÃO PAULO, MÃE"},
      {"Straße ¿Qué? ½ µm ±5", "Straße ¿Qué? ½ µm ±5"},
  };
  for (const Cleaned& c : cases) EXPECT_EQ(clean_text(c.text), c.expected) << c.text;
}

// The sums were computed with Python 3.11 (Unicode 14) over the same texts.
TEST(CanonicalComposition, AgreesWithPythonOnEveryCodePoint) {
  std::string all;
  const std::pair<char32_t, char32_t> ranges[] = {
      {0, 0x3400}, {0xa000, 0xad00}, {0xf900, 0x11a00}, {0x1d100, 0x1d200}, {0x2f800, 0x2fa20}};
  for (const auto& [first, end] : ranges) {
    for (char32_t c = first; c < end; ++c) {
      const char32_t texts[3][3] = {{c, 0, 0}, {U'a', 0x301, c}, {c, 0x301, 0x327}};
      for (std::size_t i = 0; i < 3; ++i) {
        const std::u32string_view text(texts[i], i == 0 ? 1 : 3);
        all += encode_utf8(canonical_composition(text));
      }
    }
  }
  EXPECT_EQ(hash_of(all), 0x3e78af04fb6fde7u);
}

TEST(HtmlReferences, AgreeWithPythonOnEveryName) {
  std::string all, strict;
  const auto add = [&](const std::string& text) { all += unescape_html(text); };
  const auto add_strict = [&](const std::string& text) { strict += unescape_html_strictly(text); };
  std::string_view rest = kEntityNames;
  while (!rest.empty()) {
    const std::size_t equals = rest.find('=');
    const std::string name(rest.substr(0, equals));
    rest.remove_prefix(rest.find(' ', equals) + 1);
    std::string upper = name;
    for (char& c : upper) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
    const std::string cut = name.substr(0, name.size() - 1);
    const std::string text = "x&" + name + ";y &" + name + "y &" + cut + "; &" + upper + ";";
    add(text);
    add_strict(text);
  }
  std::vector<std::string> numbers;
  for (int i = 0; i < 0x300; ++i) numbers.push_back(std::to_string(i));
  for (const long i :
       {0xd7ffL, 0xd800L, 0xdfffL, 0xe000L, 0xfdd0L, 0xfdefL, 0xfdf0L, 0xfffdL, 0xfffeL, 0xffffL,
        0x10000L, 0x1ffffL, 0x10fffdL, 0x10ffffL, 0x110000L, 0x80000000L}) {
    numbers.push_back(std::to_string(i));
  }
  const auto add_number = [&](const std::string& n, const std::string& hex,
                              const std::string& upper) {
    add("&#" + n + ";a&#x" + hex + "g&#X" + upper + ";&#" + n);
    add_strict("&#" + n + ";a&#x" + hex + ";g&#x" + upper + ";&#" + n);
  };
  for (const std::string& n : numbers) {
    char hex[32], upper[32];
    std::snprintf(hex, sizeof hex, "%lx", std::stol(n));
    std::snprintf(upper, sizeof upper, "%lX", std::stol(n));
    add_number(n, hex, upper);
  }
  add_number("18446744073709551616", "10000000000000000", "10000000000000000");
  add_number("1000000000000000000000000000000", "c9f2c9cd04674edea40000000",
             "C9F2C9CD04674EDEA40000000");
  EXPECT_EQ(hash_of(all), 0x63554d89e1c53f6eu);
  EXPECT_EQ(hash_of(strict), 0xc7686e2761db46eau);
}

}  // namespace
}  // namespace ballast::data::clean_text_test
