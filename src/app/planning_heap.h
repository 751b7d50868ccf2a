#pragma once

#include <malloc.h>

namespace ballast {

// While it lives, memory that is given back stays with the process. Planning makes recordings of
// about the same size one after the other, and pages of their own for each take a quarter of its
// time.
class PlanningHeap {
 public:
  PlanningHeap() {
    ::mallopt(M_MMAP_MAX, 0);
    ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  }
  ~PlanningHeap() {
    ::mallopt(M_MMAP_MAX, kUsualMaps);
    ::mallopt(M_TRIM_THRESHOLD, kUsualTrim);
    ::malloc_trim(0);
  }
  PlanningHeap(const PlanningHeap&) = delete;
  PlanningHeap& operator=(const PlanningHeap&) = delete;

 private:
  // What malloc begins with. It does not adapt them any more, as it would have: what a run needs it
  // allocates once.
  static constexpr int kUsualMaps = 65536, kUsualTrim = 128 << 10;
};

}  // namespace ballast
