#include "core/crc32.h"

#include <gtest/gtest.h>

namespace ballast {
namespace {

TEST(Crc32, GivesThePublishedCheckValue) {
  EXPECT_EQ(crc32("123456789"), 0xCBF43926u);
  EXPECT_EQ(crc32(""), 0u);
}

}  // namespace
}  // namespace ballast
