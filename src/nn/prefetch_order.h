#pragma once

#include <cstdint>
#include <vector>

#include "plan/program.h"

namespace ballast {

// Instructions [begin, end) of a program fill `target` with something that is there all the time
// (in a file, in host memory), so they may run anywhere before its first use. The `prepared` ones
// behind them complete the place with what may not be there that early: they come right before its
// first use, or not at all where there is none.
struct Prefetch {
  std::uint32_t begin, end;
  Buffer target;
  std::uint32_t prepared = 0;
};

// The lanes that bring work in recorded order, so where such instructions stand decides how far
// they run ahead. Both move them, given in recorded order, to where they serve best.

// Places that take turns holding things: each is filled right behind the last instruction that
// used what stood there, so next things come in the order in which places become free.
void prefetch_early(ProgramSet& set, std::size_t program, const std::vector<Prefetch>& prefetches);

// Places of their own (temporaries): each is filled when the one `ahead` before it is used for the
// first time. What nobody uses is not brought.
void prefetch_just_in_time(ProgramSet& set, std::size_t program, std::vector<Prefetch> prefetches,
                           int ahead);

// The program's last instruction, which brings something on a lane of its own: moved to where it
// runs beside the last product or convolution. It stays behind all that it has to wait for.
void prefetch_beside(ProgramSet& set, std::size_t program);

}  // namespace ballast
