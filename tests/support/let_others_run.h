#pragma once

#include <thread>

namespace ballast::support {

// Gives other threads every chance to do what they should not yet do. A test that is right needs
// none of it: no time is measured.
inline void let_others_run() {
  for (int i = 0; i < 20'000; ++i) std::this_thread::yield();
}

}  // namespace ballast::support
