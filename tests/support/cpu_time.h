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

}  // namespace ballast::test
