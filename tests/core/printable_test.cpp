#include <gtest/gtest.h>

#include "core/error.h"

namespace ballast {
namespace {

TEST(Printable, TextInAnyLanguageStaysAsItIs) {
  for (const char* text : {"/home/\u540d\u524d/\u732b.mp4", "un \u00e9t\u00e9", "say \"hi\"",
                           "C:\\clips", "\U0001f408"}) {
    EXPECT_EQ(printable(text), text);
  }
}

TEST(Printable, WhatATerminalObeysIsEscaped) {
  EXPECT_EQ(printable("a\x1b[2J\n\x7f"), "a\\x1b[2J\\x0a\\x7f");
  EXPECT_EQ(printable("a\u202eb\u200bc\ufeff\u2066\u0085"),
            "a\\u202eb\\u200bc\\ufeff\\u2066\\u0085");
  EXPECT_EQ(printable("a\xff\xc3(\xed\xa0\x80"), "a\\xff\\xc3(\\xed\\xa0\\x80");
}

TEST(Printable, TwiceIsOnce) {
  const std::string once = printable("\u732b\x1b\xff\u202e \\ \"");
  EXPECT_EQ(printable(once), once);
}

TEST(Printable, LongTextIsCutBetweenCharacters) {
  EXPECT_EQ(printable("\u732b\u732b", 4), "\u732b... (6 bytes)");
  EXPECT_EQ(printable("\u732b\u732b", 6), "\u732b\u732b");
  EXPECT_EQ(printable("abc", 2), "ab... (3 bytes)");
}

}  // namespace
}  // namespace ballast
