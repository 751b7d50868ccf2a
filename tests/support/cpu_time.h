#pragma once

#include <sys/resource.h>

namespace ballast::test {

// Processor time of all children that were waited for.
inline double children_cpu_seconds() {
  rusage used = {};
  ::getrusage(RUSAGE_CHILDREN, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// How much slower a program is when a sanitizer watches it.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr double kSanitizerSlowdown = 20;
#else
inline constexpr double kSanitizerSlowdown = 1;
#endif

}  // namespace ballast::test
