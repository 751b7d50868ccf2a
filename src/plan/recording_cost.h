#pragma once

#include <cstdint>

namespace ballast {

// Instructions that this process has recorded, for plans and for runs: the cost of a search for a
// plan, in numbers that do not depend on the machine.
std::uint64_t recorded_instructions();

}  // namespace ballast
