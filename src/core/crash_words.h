#pragma once

namespace ballast {

// From now on a process that ends by a fault (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT) says on
// standard error which instructions its lanes were running. It ends by the signal all the same, by
// whoever handled it before.
void say_last_words_on_crash();

}  // namespace ballast
