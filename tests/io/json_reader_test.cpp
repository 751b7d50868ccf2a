#include "io/json_reader.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/to_size.h"
#include "io/json_writer.h"
#include "io/utf8.h"
#include "tests/support/errors.h"

namespace ballast {
namespace {

JsonReader reader(std::string_view text) {
  return JsonReader({.text = text, .path = "config.json", .rule = "test.json"});
}

template <class Read>
auto value(std::string_view text, Read&& read) {
  JsonReader json = reader(text);
  auto result = read(json);
  json.finish();
  return result;
}

std::string read_string(std::string_view text) {
  return value(text, [](JsonReader& j) { return std::string(j.string()); });
}
std::uint64_t read_u64(std::string_view text) {
  return value(text, [](JsonReader& j) { return j.u64(); });
}
std::int64_t read_i64(std::string_view text) {
  return value(text, [](JsonReader& j) { return j.i64(); });
}
double read_number(std::string_view text) {
  return value(text, [](JsonReader& j) { return j.number(); });
}
bool skips(std::string_view text) {
  return !test::error_of([&] {
    JsonReader json = reader(text);
    json.skip();
    json.finish();
  });
}

TEST(JsonReader, ReadsAnObjectValueByValue) {
  JsonReader json = reader(
      " { \"dim\" : 5120 ,\"eps\":1e-6,\"list\":[1,[],{}],\"on\":true,\"off\":false,"
      "\"none\":null,\"\":\"\"}\r\n\t ");
  std::vector<std::string> keys;
  json.open_object();
  for (std::string_view key; json.next_key(key);) {
    keys.emplace_back(key);
    if (key == "dim") {
      EXPECT_EQ(json.u64(), 5120u);
    } else if (key == "eps") {
      EXPECT_EQ(json.number(), 1e-6);
    } else if (key == "list") {
      json.open_array();
      EXPECT_TRUE(json.next_element());
      EXPECT_EQ(json.i64(), 1);
      EXPECT_TRUE(json.next_element());
      EXPECT_EQ(json.peek(), JsonReader::Kind::array);
      json.open_array();
      EXPECT_FALSE(json.next_element());
      EXPECT_TRUE(json.next_element());
      json.open_object();
      std::string_view none;
      EXPECT_FALSE(json.next_key(none));
      EXPECT_FALSE(json.next_element());
    } else if (key == "on" || key == "off") {
      EXPECT_EQ(json.boolean(), key == "on");
    } else if (key == "none") {
      json.null();
    } else {
      EXPECT_EQ(json.string(), "");
    }
  }
  json.finish();
  EXPECT_EQ(keys, (std::vector<std::string>{"dim", "eps", "list", "on", "off", "none", ""}));
}

TEST(JsonReader, IntegersAreExactToTheLastOne) {
  EXPECT_EQ(read_u64("0"), 0u);
  EXPECT_EQ(read_u64("9007199254740993"), 9007199254740993u);  // no double holds it
  EXPECT_EQ(read_u64("18446744073709551615"), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(read_i64("-9223372036854775808"), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(read_i64("9223372036854775807"), std::numeric_limits<std::int64_t>::max());
  for (const char* text : {"18446744073709551616", "-1", "-0", "1.0", "1e3", "1E0", "01", "00",
                           "+1", "0x1", "1_000", "", "-", "NaN", "\"1\"", "1 2"}) {
    EXPECT_FAILS(read_u64(text), ErrorCode::input, "config.json: test.json: ");
  }
  EXPECT_FAILS(read_i64("9223372036854775808"), ErrorCode::input, "64 bits");
  EXPECT_FAILS(read_i64("1.5"), ErrorCode::input, "64 bits");
}

TEST(JsonReader, NumbersFollowTheGrammar) {
  EXPECT_EQ(read_number("-0.5e+2"), -50.0);
  EXPECT_EQ(read_number("0"), 0.0);
  EXPECT_EQ(read_number("1E-3"), 1e-3);
  EXPECT_EQ(read_number("3.4028235e38"), 3.4028235e38);
  for (const char* text :
       {".5", "5.", "1e", "1e+", "--1", "- 1", "Infinity", "nan", "1e400", "1f"}) {
    EXPECT_FAILS(read_number(text), ErrorCode::input, "test.json");
  }
}

TEST(JsonReader, StringsDecodeEveryEscape) {
  EXPECT_EQ(read_string(R"("plain")"), "plain");
  EXPECT_EQ(read_string(R"("\"\\\/\b\f\n\r\t")"), "\"\\/\b\f\n\r\t");
  EXPECT_EQ(read_string(R"("a\u0041\u00e9\u20ac\ud83d\ude00z")"), "aAé€😀z");
  EXPECT_EQ(read_string(R"("\u0000")"), std::string(1, '\0'));
  EXPECT_EQ(read_string(R"("\uD83D\uDE00")"), "😀");
  EXPECT_EQ(read_string("\"\x7f é 😀\""), "\x7f é 😀");
  for (const char* text :
       {R"("\ud800")", R"("\ud800x")", R"("\ud800\n")", R"("\ud800\u0041")", R"("\udc00")",
        R"("\u12")", R"("\u12g4")", R"("\u+123")", R"("\u 123")", R"("\x41")", R"("\)", R"("\u)",
        R"("a)", "\"a\nb\"", "\"\x01\"", "'a'"}) {
    EXPECT_FAILS(read_string(text), ErrorCode::input, "test.json");
  }
  EXPECT_FAILS(read_string("\"\xff\""), ErrorCode::input, "invalid UTF-8");
}

TEST(JsonReader, SkipChecksWhatItSkips) {
  for (const char* text : {"{}", "[]", "[1,2]", "{\"a\":[{\"b\":null}]}", "\"\\u0041\"", "-1.5e3",
                           "1e999", "true", "[[],[[]],{}]", " 1 "}) {
    EXPECT_TRUE(skips(text)) << text;
  }
  for (const char* text :
       {"",      "{",       "[",        "[1",         "[1,", "[1,]",  "[,1]",
        "[1 2]", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{,}", "{1:2}", "{\"a\":1 \"b\":2}",
        "[}",    "{]",      "]",        "}",          "tru", "nul",   "falsey",
        "nulll", "01",      "-",        "\"",         "1,",  "{}{}",  "[1]]",
        "\v1",   "/**/1"}) {
    EXPECT_FALSE(skips(text)) << text;
  }
}

// Skipping has a path of its own for what is plain; it must take and refuse what reading does.
TEST(JsonReader, SkippingAnElementJudgesItAsReadingItDoes) {
  const auto reads = [](const std::string& text, bool string) {
    return !test::error_of([&] {
      JsonReader json = reader(text);
      json.open_array();
      while (json.next_element()) {
        if (string) {
          json.string();
        } else {
          json.number_text();
        }
      }
      json.finish();
    });
  };
  int right = 0, wrong = 0;
  const auto compare = [&](const std::string& element, bool string) {
    const std::string before = string ? "[\"\",\"a\"," : "[1,2,",
                      after = string ? ", \"b\" ]" : ", 3 ]";
    for (const std::string& text : {"[" + element + "]", before + element + after}) {
      EXPECT_EQ(skips(text), reads(text, string)) << text;
      ++(skips(text) ? right : wrong);
    }
  };
  // Every text of up to four of these: all numbers, and all that look like one.
  constexpr std::string_view kParts = "-01.eE+";
  for (int length = 1; length <= 4; ++length) {
    std::string text(to_size(length), kParts[0]);
    int combinations = 1;
    for (int i = 0; i < length; ++i) combinations *= static_cast<int>(kParts.size());
    for (int n = 0; n < combinations; ++n) {
      int rest = n;
      for (char& c : text) {
        c = kParts[to_size(rest) % kParts.size()];
        rest /= static_cast<int>(kParts.size());
      }
      compare(text, false);
    }
  }
  EXPECT_GT(right, 50);
  EXPECT_GT(wrong, 2'000);
  for (int c = 0; c < 256; ++c) {  // alone, and behind a backslash
    const std::string byte(1, static_cast<char>(c));
    compare("\"" + byte + "\"", true);
    compare("\"\\" + byte + "\"", true);
    compare("\"\\" + byte + "000\"", true);
    compare("\"\\u" + byte + "000\"", true);
    compare("\"\\u000" + byte + "\"", true);
  }
  for (const char* text : {R"("\ud800\udc00")", R"("\uD800\uDC00")", R"("\ud800")", R"("\ud7ff")",
                           R"("\udfff")", R"("\u12")", R"("\")", R"("\\")", R"(")", R"("é")"}) {
    compare(text, true);
  }
}

TEST(JsonReader, SkippingFailsWhereReadingWouldAndNamesTheKeys) {
  const auto message = [](const char* text) {
    return std::string(test::error_of([&] { reader(text).skip(); })->what());
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(message(R"({"a":[1,2,{"b":3,"c":[4,x]}]})"),
              HasSubstr("expected a value, found 'x' at line 1, column 25 (byte offset 24), in "
                        "\"a\" / \"c\""));
  EXPECT_THAT(message("[1,[x]]"), HasSubstr("expected a value, found 'x'"));
  EXPECT_THAT(message("[1,[2 3]]"), HasSubstr("expected ',' or ']', found '3'"));
  EXPECT_THAT(message("[1,01]"), HasSubstr("leading zero at line 1, column 4"));
  EXPECT_THAT(message("{\"a\":1,\"b\" 2}"), HasSubstr("expected ':', found '2'"));
}

TEST(JsonReader, DepthIsBounded) {
  const auto nested = [](int depth) {
    return std::string(to_size(depth), '[') + std::string(to_size(depth), ']');
  };
  EXPECT_TRUE(skips(nested(32)));
  EXPECT_FALSE(skips(nested(33)));
  EXPECT_FAILS(reader(nested(33)).skip(), ErrorCode::input, "deeper than 32");
}

TEST(JsonReader, MessagesGiveLineColumnOffsetAndKeys) {
  JsonReader json({.text = "{\"model\":\n  {\"dim\": \"wide\"}}",
                   .path = "x.json",
                   .rule = "r",
                   .file_offset = 1000});
  std::string_view key;
  json.open_object();
  json.next_key(key);
  json.open_object();
  json.next_key(key);
  EXPECT_FAILS(json.u64(), ErrorCode::input,
               "x.json: r: expected a number, found a string at line 2, column 11 "
               "(byte offset 1020), in \"model\" / \"dim\"");
}

TEST(JsonWriter, EscapesOnlyWhatItMustAndReadsBack) {
  std::string all;
  for (int c = 0; c < 128; ++c) all += static_cast<char>(c);
  all += "é😀";
  std::string written;
  append_json_string(written, all);
  EXPECT_EQ(read_string(written), all);
  written.clear();
  append_json_string(written, "a/b\"\\\x01\n\x7f");
  EXPECT_EQ(written, "\"a/b\\\"\\\\\\u0001\\n\x7f\"");
}

TEST(Utf8, AcceptsEveryCodePointAndNothingElse) {
  for (char32_t c = 0; c <= 0x10ffff; c += c < 0x3000 ? 1 : 37) {
    std::string text;
    append_utf8(text, c);
    const bool surrogate = c >= 0xd800 && c <= 0xdfff;
    ASSERT_EQ(first_invalid_utf8(text).has_value(), surrogate) << static_cast<unsigned>(c);
    if (text.size() > 1) {
      ASSERT_EQ(first_invalid_utf8("12345678" + text.substr(0, text.size() - 1)), 8u);
      text[0] = 'x';  // the rest has lost its lead byte
      ASSERT_EQ(first_invalid_utf8(text), 1u);
    }
  }
}

}  // namespace
}  // namespace ballast
