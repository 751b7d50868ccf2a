#include "core/normal_distribution.h"

#include <cmath>
#include <limits>
#include <numbers>

namespace ballast {

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }

double normal_quantile(double p) {
  if (p > 0.5) return -normal_quantile(1 - p);
  if (!(p > 0)) return -std::numeric_limits<double>::infinity();
  if (p == 0.5) return 0;
  // The rational start of Abramowitz and Stegun 26.2.23 is within 4.5e-4; each of Halley's steps
  // cubes the error, so two of them leave rounding alone.
  const double t = std::sqrt(-2 * std::log(p));
  double x = (2.515517 + t * (0.802853 + t * 0.010328)) /
                 (1 + t * (1.432788 + t * (0.189269 + t * 0.001308))) -
             t;
  constexpr double kRootOfTwoPi = 2.50662827463100050242;
  for (int step = 0; step < 2; ++step) {
    const double u = (normal_cdf(x) - p) * kRootOfTwoPi * std::exp(x * x / 2);
    x -= u / (1 + x * u / 2);
  }
  return x;
}

}  // namespace ballast
