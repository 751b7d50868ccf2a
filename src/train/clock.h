#pragma once

#include <chrono>

namespace ballast::train {

inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace ballast::train
