#pragma once

#include <string>
#include <vector>

#include "core/bytes.h"
#include "io/weight_files.h"

namespace ballast {

// A file of this size is read in about a second: its values are looked at unasked.
inline constexpr Bytes kReadUnasked{1'000'000'000};

// Reads every tensor once, with progress: a sentence for each that holds NaN or infinity.
std::vector<std::string> problems_of_values(const WeightFiles& checkpoint);

}  // namespace ballast
