#pragma once

#include <cstdint>
#include <vector>

#include "plan/program.h"

namespace ballast {

// "Not before `lane` has finished `count` instructions of this program."
struct Wait {
  Lane lane;
  std::uint32_t count;
  friend bool operator==(const Wait&, const Wait&) = default;
};

// What every instruction of one program waits for on other lanes.
struct Waits {
  std::vector<Wait> all;
  std::vector<std::uint32_t> begin;  // of instruction i: all[begin[i]] to all[begin[i + 1]]
};

// Derived from the packed byte ranges: two instructions on different lanes of which one writes
// bytes that the other touches run in recorded order. So the reuse of memory is ordered like any
// other conflict, and nobody writes a wait by hand.
Waits derive_waits(const ProgramSet& set, int program, const std::vector<std::uint64_t>& offset);
std::vector<Waits> derive_waits(const ProgramSet& set,
                                const std::vector<std::uint64_t>& offset);  // of all programs

}  // namespace ballast
