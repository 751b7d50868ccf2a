#include "core/crc32c.h"

#include <gtest/gtest.h>

#include <string_view>

namespace ballast {
namespace {

std::uint32_t crc_of(std::string_view text) { return crc32c(std::as_bytes(std::span(text))); }

TEST(Crc32c, GivesThePublishedCheckValue) {
  EXPECT_EQ(crc_of("123456789"), 0xE3069283u);
  EXPECT_EQ(crc_of(""), 0u);
  EXPECT_EQ(crc_of(std::string_view("\0\0\0\0", 4)), 0x48674BC7u);
}

}  // namespace
}  // namespace ballast
