#include "core/crash_words.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "core/now_running.h"

namespace ballast {
namespace {

struct Fault {
  int signal;
  const char* name;
  struct sigaction before;
};
std::array<Fault, 5> faults = {{{SIGSEGV, "SIGSEGV (memory that is not the process's)", {}},
                                {SIGBUS, "SIGBUS (memory or a mapped file that is gone)", {}},
                                {SIGFPE, "SIGFPE (an impossible division)", {}},
                                {SIGILL, "SIGILL (an instruction that this processor lacks)", {}},
                                {SIGABRT, "SIGABRT (a library gave up)", {}}}};

// A handler may call little more than write().
void say(const char* text) {
  if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

void last_words(int signal, siginfo_t* info, void*) {
  say("\nballast: crashed by ");
  for (const Fault& f : faults) {
    if (f.signal == signal) say(f.name);
  }
  say("\n");
  for (const NowRunning& now : now_running()) {
    const char* const instruction = now.instruction.load(std::memory_order_relaxed);
    const char* const program = now.program.load(std::memory_order_relaxed);
    if (instruction == nullptr || program == nullptr) continue;
    say("  while running ");
    say(instruction);
    say(" of program ");
    say(program);
    say("\n");
  }
  say("  `ballast doctor` says how far the run was and what memory it had\n");
  for (const Fault& f : faults) {
    if (f.signal == signal) ::sigaction(signal, &f.before, nullptr);
  }
  // A fault happens again when this returns; a signal that somebody sent does not.
  if (info == nullptr || info->si_code <= 0) ::raise(signal);
}

}  // namespace

void say_last_words_on_crash() {
  for (Fault& f : faults) {
    struct sigaction action {};
    action.sa_sigaction = last_words;
    action.sa_flags = SA_SIGINFO;
    ::sigemptyset(&action.sa_mask);
    if (::sigaction(f.signal, &action, &f.before) != 0) f.before = {};
  }
}

}  // namespace ballast
