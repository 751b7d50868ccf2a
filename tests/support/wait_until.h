#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace ballast::test {

// Whether `true_by_now` became so before a time that no healthy machine takes. For what another
// process or thread does.
inline bool wait_until(const std::function<bool()>& true_by_now,
                       std::chrono::milliseconds limit = std::chrono::seconds(60)) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!true_by_now()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

}  // namespace ballast::test
