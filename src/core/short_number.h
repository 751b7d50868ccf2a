#pragma once

#include <cstdint>
#include <string>

namespace ballast {

// Three significant digits with the unit that suits: "76.7 M", "1.42 B"; below 1,000 as it is.
std::string short_count(std::int64_t n);

// "650 TFLOP/s", "35.2 GFLOP/s": a rate of floating-point operations.
std::string flop_rate(double per_second);

}  // namespace ballast
