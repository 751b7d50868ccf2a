#pragma once

namespace ballast {

// From now on a process that ends by a fault (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT) says on
// standard error which instructions its lanes were running. It ends by the signal all the same, by
// whoever handled it before.
void report_lanes_on_crash();

// From now on a failed allocation ends the process with exit code 5 and a message even where no
// exception can pass: std::filesystem allocates in functions that are noexcept.
void exit_when_memory_is_out();

}  // namespace ballast
