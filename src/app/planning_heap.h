#pragma once

#include <malloc.h>

namespace ballast {

// While it lives, memory that is given back stays with the process. Planning makes recordings of
// about the same size one after the other, and pages of their own for each take a quarter of its
// time. Who goes on with less afterwards gives it back (malloc_trim).
class PlanningHeap {
 public:
  PlanningHeap() {
    ::mallopt(M_MMAP_MAX, 0);
    ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  }
  ~PlanningHeap() {
    ::mallopt(M_MMAP_MAX, kUsualMaps);
    ::mallopt(M_TRIM_THRESHOLD, kUsualTrim);
  }
  PlanningHeap(const PlanningHeap&) = delete;
  PlanningHeap& operator=(const PlanningHeap&) = delete;

 private:
  static constexpr int kUsualMaps = 65536, kUsualTrim = 128 << 10;  // what malloc begins with
};

}  // namespace ballast
