#include "core/wrap_text.h"

#include <gtest/gtest.h>

namespace ballast {
namespace {

TEST(WrapText, BreaksAtSpacesAndIndents) {
  EXPECT_EQ(wrapped("note  ", "one two three", 13, 6), "note  one two\n      three");
  EXPECT_EQ(wrapped("note  ", "one two three", 0, 6), "note  one two three");
  EXPECT_EQ(wrapped("", "", 10, 2), "");
}

TEST(WrapText, AWordThatIsTooWideStaysWhole) {
  EXPECT_EQ(wrapped("x ", "/a/path/that/is/long end", 10, 2), "x /a/path/that/is/long\n  end");
}

TEST(WrapText, CountsCharactersNotBytes) {
  EXPECT_EQ(width_of("\u00e9\u00e9"), 2u);
  EXPECT_EQ(wrapped("", "\u00e9\u00e9\u00e9 \u00e9\u00e9", 6, 0),
            "\u00e9\u00e9\u00e9 \u00e9\u00e9");
}

}  // namespace
}  // namespace ballast
