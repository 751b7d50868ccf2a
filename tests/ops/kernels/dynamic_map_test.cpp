#include "ops/kernels/dynamic_map.h"

#include <gtest/gtest.h>

#include "tests/ref/adamw_8bit.h"
#include "tests/support/dynamic_map_cases.h"

namespace ballast::ops::dynamic_map_test {
namespace {

using support::code_of;

TEST(DynamicMap, HoldsTheValuesOfTheReference) {
  for (const bool with_signs : {true, false}) {
    const DynamicMap& map = with_signs ? signed_map() : unsigned_map();
    const std::vector<float> want = ref::dynamic_map(with_signs);
    ASSERT_EQ(want.size(), 256u);
    EXPECT_EQ(std::vector<float>(map.value, map.value + 256), want);
    EXPECT_EQ(map.value[255], 1);
    for (int i = 0; i < 255; ++i) EXPECT_LT(map.value[i], map.value[i + 1]);
    for (int i = 0; i < 255; ++i) EXPECT_LT(map.threshold[i], map.threshold[i + 1]);
  }
  EXPECT_EQ(signed_map().value[127], 0);
  EXPECT_EQ(unsigned_map().value[0], 0);
  // (0.1 + 1) / 2 * 1e-6 and (0.1 + 0.55) / 2 * 1e-6 are the smallest, 1 - 0.9 / 128 and
  // 1 - 0.9 / 256 the largest below 1.
  EXPECT_NEAR(signed_map().value[128], 5.5e-7, 1e-13);
  EXPECT_NEAR(unsigned_map().value[1], 3.25e-7, 1e-13);
  EXPECT_NEAR(signed_map().value[254], 0.99296875, 1e-7);
  EXPECT_NEAR(signed_map().value[0], -0.99296875, 1e-7);
  EXPECT_NEAR(unsigned_map().value[254], 0.996484375, 1e-7);
}

TEST(DynamicMap, ThresholdsFindWhatTheBinarySearchFinds) {
  for (const bool with_signs : {true, false}) {
    const DynamicMap& map = with_signs ? signed_map() : unsigned_map();
    const std::vector<float> values = ref::dynamic_map(with_signs);
    for (const float x : support::cases_of(map)) {
      if (!with_signs && x < 0) continue;
      EXPECT_EQ(code_of(map, x), ref::nearest_code(values, x, with_signs)) << x;
    }
  }
}

TEST(DynamicMap, KeepsTheSignOfSmallNumbers) {
  EXPECT_EQ(code_of(signed_map(), -1e-12f), 126);
  EXPECT_EQ(code_of(signed_map(), 1e-12f), 127);
  EXPECT_EQ(code_of(signed_map(), 0.0f), 127);
}

}  // namespace
}  // namespace ballast::ops::dynamic_map_test
