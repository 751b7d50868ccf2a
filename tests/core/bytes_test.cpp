#include "core/bytes.h"

#include <gtest/gtest.h>

namespace ballast {
namespace {

TEST(Bytes, ParsesDecimalAndBinaryUnits) {
  EXPECT_EQ(parse_bytes("24GB"), Bytes{24000000000});
  EXPECT_EQ(parse_bytes("24 GiB"), Bytes{24ull << 30});
  EXPECT_EQ(parse_bytes("1.5GiB"), Bytes{3ull << 29});
  EXPECT_EQ(parse_bytes("14.5GB"), Bytes{14500000000});
  EXPECT_EQ(parse_bytes("512MiB"), 512_MiB);
  EXPECT_EQ(parse_bytes("4096"), Bytes{4096});
  EXPECT_EQ(parse_bytes("24g"), 24_GB);
  EXPECT_EQ(parse_bytes("2TiB"), Bytes{2ull << 40});
  EXPECT_EQ(parse_bytes("10000000TB"), Bytes{10'000'000'000'000'000'000ull});  // above 2^63
}

TEST(Bytes, RefusesWhatIsNotASize) {
  for (const char* text :
       {"", "GB", "-1GB", "nan", "inf", "1e400GB", "24 parsecs", "1GB2", "99999999TB"}) {
    EXPECT_EQ(parse_bytes(text), std::nullopt) << text;
  }
}

TEST(Bytes, PrintsFourSignificantDigits) {
  EXPECT_EQ(to_string(Bytes{702788608}), "702.8 MB");
  EXPECT_EQ(to_string(Bytes{13420000000}), "13.42 GB");
  EXPECT_EQ(to_string(Bytes{999}), "999 B");
  EXPECT_EQ(to_string(Bytes{1000}), "1.000 kB");
}

}  // namespace
}  // namespace ballast
