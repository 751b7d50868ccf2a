#include "core/nearest_name.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ballast {
namespace {

const std::vector<std::string_view> kKnown = {"inspect", "verify", "doctor", "plan"};

TEST(NearestName, OneSlipIsForgiven) {
  EXPECT_EQ(nearest_name("inspct", kKnown), "inspect");  // left out
  EXPECT_EQ(nearest_name("veriify", kKnown), "verify");  // doubled
  EXPECT_EQ(nearest_name("dcotor", kKnown), "doctor");   // swapped
  EXPECT_EQ(nearest_name("plam", kKnown), "plan");       // replaced
  EXPECT_EQ(nearest_name("verify", kKnown), "verify");
}

TEST(NearestName, RepeatedAndMovedLettersAreStillNear) {
  const std::vector<std::string_view> known = {"aabb", "bbaa_long", "network_dim", "network_args"};
  EXPECT_EQ(nearest_name("abab", known), "aabb");
  EXPECT_EQ(nearest_name("aaabb", known), "aabb");
  EXPECT_EQ(nearest_name("networkdim", known), "network_dim");
  EXPECT_EQ(nearest_name("netowrk_arsg", known), "network_args");
  EXPECT_EQ(nearest_name("bbbbbbbb", known), std::nullopt);
}

TEST(NearestName, FarAwayNamesGetNoSuggestion) {
  EXPECT_EQ(nearest_name("frobnicate", kKnown), std::nullopt);
  EXPECT_EQ(nearest_name("", kKnown), std::nullopt);
  EXPECT_EQ(nearest_name(std::string(100000, 'x'), kKnown), std::nullopt);
  EXPECT_EQ(nearest_name("x", {}), std::nullopt);
}

}  // namespace
}  // namespace ballast
