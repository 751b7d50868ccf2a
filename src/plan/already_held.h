#pragma once

#include "core/bytes.h"

namespace ballast {

// Memory that this process held before Ballast was called in it: of another program that has loaded
// the library. Plans count it against the RAM budget. 0 in the program itself.
Bytes already_held();

// Finds it out, and returns it. own: what of the process is Ballast's now, as planned. Under a
// sanitizer, whose memory cannot be told from the program's, nothing is held.
Bytes measure_already_held(Bytes own = {});

}  // namespace ballast
