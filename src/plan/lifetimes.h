#pragma once

#include <cstdint>
#include <vector>

#include "plan/program.h"

namespace ballast {

// The instructions between which a temporary holds something, both included.
struct Lifetime {
  static constexpr std::uint32_t kNever = ~0u;
  std::uint32_t first = kNever;
  std::uint32_t last = 0;
  std::uint32_t uses = 0;  // how often instructions name it; an update in place counts twice
};

// By buffer id, for the roots that the program touches; views count for their root. Fails when a
// temporary is read before anything wrote it, or belongs to another program.
std::vector<Lifetime> lifetimes(const ProgramSet& set, int program);
// The same into a vector that serves one program after another: of the program's own temporaries,
// which nobody else has touched. What it says of persistent buffers is not reset between them.
void lifetimes(const ProgramSet& set, int program, std::vector<Lifetime>& life);

}  // namespace ballast
