#pragma once

#include "core/bytes.h"

namespace ballast {

// Memory that this process held before Ballast was called in it: of another program that has loaded
// the library. Plans count it against the RAM budget. 0 in the program itself.
Bytes already_held();

// Finds it out at the begin of a call. own: what of the process is Ballast's now, as planned. What
// planning leaves in the heap is taken for Ballast's: a call finds another number only where the
// process has grown or shrunk by more than kHeldSlack since. Under a sanitizer, whose memory cannot
// be told from the program's, nothing is held.
void measure_already_held(Bytes own = {});
inline constexpr Bytes kHeldSlack{48 << 20};

}  // namespace ballast
