#include "core/short_number.h"

#include <gtest/gtest.h>

namespace ballast {
namespace {

TEST(ShortNumber, CountsHaveThreeDigitsAndAUnit) {
  EXPECT_EQ(short_count(0), "0");
  EXPECT_EQ(short_count(999), "999");
  EXPECT_EQ(short_count(1000), "1.00 K");
  EXPECT_EQ(short_count(614'400), "614 K");
  EXPECT_EQ(short_count(999'999), "1.00 M");
  EXPECT_EQ(short_count(76'677'120), "76.7 M");
  EXPECT_EQ(short_count(14'288'491'584), "14.3 B");
}

TEST(ShortNumber, RatesHaveTheUnitThatShowsThem) {
  EXPECT_EQ(flop_rate(6.5e14), "650 TFLOP/s");
  EXPECT_EQ(flop_rate(1.25e12), "1.25 TFLOP/s");
  EXPECT_EQ(flop_rate(9.9996e11), "1.00 TFLOP/s");
  EXPECT_EQ(flop_rate(35.24e9), "35.2 GFLOP/s");
  EXPECT_EQ(flop_rate(8.1e7), "81.0 MFLOP/s");
  EXPECT_EQ(flop_rate(512), "512 FLOP/s");
}

}  // namespace
}  // namespace ballast
