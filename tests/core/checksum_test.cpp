#include "core/checksum.h"

#include <gtest/gtest.h>

namespace ballast {
namespace {

// From the test vectors of xxHash: XXH3_64bits, seed 0.
TEST(Checksum, IsXxh3) {
  EXPECT_EQ(checksum_text(""), "2d06800538d394c2");
  EXPECT_EQ(checksum_text("a"), "e6c632b61e964e1f");
  EXPECT_EQ(checksum_text("abc"), "78af5f94892f3950");
}

TEST(Checksum, DoesNotDependOnTheCut) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * i >> 3);
  const auto bytes = std::as_bytes(std::span(text));
  for (const std::size_t cut : {0u, 1u, 63u, 64u, 240u, 241u, 1024u, 4999u, 5000u}) {
    Checksum sum;
    sum.add(bytes.first(cut));
    sum.add({});
    (void)sum.value();  // may be asked for in between
    sum.add(bytes.subspan(cut));
    EXPECT_EQ(sum.text(), checksum_text(text)) << cut;
  }
}

TEST(Checksum, KnowsItsOwnText) {
  EXPECT_TRUE(is_checksum_text("0123456789abcdef"));
  for (const char* bad : {"", "0123456789abcde", "0123456789abcdeff", "0123456789abcdeF",
                          "0123456789abcde ", "0123456789abcdeg"}) {
    EXPECT_FALSE(is_checksum_text(bad)) << bad;
  }
}

}  // namespace
}  // namespace ballast
