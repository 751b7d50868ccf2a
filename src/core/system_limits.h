#pragma once

#include "core/error.h"

namespace ballast {

// The system refused memory. The error (ErrorCode::device) names the limits of the process that are
// in force: ulimit -v and ulimit -d.
Error out_of_memory();

// The same for a thread: ulimit -v, ulimit -u, pids.max of the control group. what: "computing";
// why: the system's words.
Error out_of_threads(std::string_view what, std::string_view why);

}  // namespace ballast
