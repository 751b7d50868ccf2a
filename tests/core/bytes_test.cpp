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

TEST(Bytes, AsksForTheUnitOfANumberThatIsSmallWithoutOne) {
  EXPECT_EQ(missing_unit("24"), "24 means 24 bytes; did you mean 24GB?");
  EXPECT_EQ(missing_unit("24 "), "24 means 24 bytes; did you mean 24GB?");
  EXPECT_EQ(missing_unit("1"), "1 means 1 byte; did you mean 1GB?");
  EXPECT_EQ(missing_unit("23.5"), "23.5 means 23 bytes; did you mean 23.5GB?");
  EXPECT_EQ(missing_unit("24576"), "24576 means 24576 bytes; did you mean 24576MB?");
  EXPECT_TRUE(missing_unit("999999").has_value());
  for (const char* text : {"0", "0.0", "1000000", "24000000000", "24B", "24 b", "24GB", "0GB", "",
                           "GB", "-1", "24 parsecs"}) {
    EXPECT_EQ(missing_unit(text), std::nullopt) << text;
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
