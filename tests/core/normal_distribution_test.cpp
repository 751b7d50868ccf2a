#include "core/normal_distribution.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ballast {
namespace {

// Values of printed tables.
TEST(NormalDistribution, HasTheKnownQuantiles) {
  EXPECT_EQ(normal_quantile(0.5), 0);
  EXPECT_NEAR(normal_quantile(0.975), 1.959963984540054, 1e-14);
  EXPECT_NEAR(normal_quantile(0.25), -0.6744897501960817, 1e-14);
  EXPECT_NEAR(normal_quantile(1e-4), -3.71901648545568, 1e-14);
  EXPECT_NEAR(normal_quantile(0.9999), 3.7190164854557084, 1e-14);  // of the double next to it
  EXPECT_NEAR(normal_quantile(1e-12), -7.034483825301132, 1e-14);
  EXPECT_EQ(normal_quantile(0), -INFINITY);
  EXPECT_EQ(normal_quantile(1), INFINITY);
}

TEST(NormalDistribution, QuantileInvertsTheCdf) {
  for (double x = -8; x <= 5; x += 0.037) {
    const double p = normal_cdf(x);
    // One unit of p moves x by that over the density.
    const double density = std::exp(-x * x / 2) / 2.5066282746;
    EXPECT_NEAR(normal_quantile(p), x, 4e-16 * (p / density + 1 / density * (x > 0)) + 4e-15) << x;
  }
}

TEST(NormalDistribution, QuantileRisesWithP) {
  double last = normal_quantile(0.5 / 10007);
  for (int i = 1; i < 10007; ++i) {
    const double x = normal_quantile((i + 0.5) / 10007);
    EXPECT_GT(x, last) << i;
    last = x;
  }
}

}  // namespace
}  // namespace ballast
