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

TEST(NearestName, FarAwayNamesGetNoSuggestion) {
  EXPECT_EQ(nearest_name("frobnicate", kKnown), std::nullopt);
  EXPECT_EQ(nearest_name("", kKnown), std::nullopt);
  EXPECT_EQ(nearest_name(std::string(100000, 'x'), kKnown), std::nullopt);
  EXPECT_EQ(nearest_name("x", {}), std::nullopt);
}

}  // namespace
}  // namespace ballast
