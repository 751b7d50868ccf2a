#pragma once

namespace ballast {

// The standard normal distribution, in double.
double normal_cdf(double x);
// The x with normal_cdf(x) = p, within a few units in the last place of the smaller of p and 1 - p;
// -infinity at 0, infinity at 1. Non-decreasing up to rounding.
double normal_quantile(double p);

}  // namespace ballast
