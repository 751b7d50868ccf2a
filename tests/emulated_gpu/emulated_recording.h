#pragma once

#include <functional>

namespace emulated {

// While the calling thread's stream records, notes the work and returns true: it is not to be done
// now.
bool noted(const std::function<void()>& work);

}  // namespace emulated
