#include "core/crash_handler.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <new>

#include "core/error.h"
#include "core/lane_activity.h"

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

void report_crash(int signal, siginfo_t* info, void*) {
  say("\nballast: crashed by ");
  for (const Fault& f : faults) {
    if (f.signal == signal) say(f.name);
  }
  say("\n");
  for (const LaneActivity& now : lane_activities()) {
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

std::atomic<bool> allocation_failed{false};
std::terminate_handler terminate_before = nullptr;

// Without an exception it is the library's own std::terminate(), behind an allocation that failed.
bool is_out_of_memory() {
  const std::exception_ptr current = std::current_exception();
  if (!current) return allocation_failed;
  try {
    std::rethrow_exception(current);
  } catch (const std::bad_alloc&) {
    return true;
  } catch (...) {
    return false;
  }
}

void on_terminate() {
  if (is_out_of_memory()) {
    say("ballast: the system has no memory left for this process, nor to end it in order\n");
    ::_exit(static_cast<int>(ErrorCode::device));
  }
  terminate_before();
}

}  // namespace

void exit_when_memory_is_out() {
  std::set_new_handler([] {
    allocation_failed = true;
    throw std::bad_alloc();
  });
  terminate_before = std::set_terminate(on_terminate);
}

void report_lanes_on_crash() {
  for (Fault& f : faults) {
    struct sigaction action {};
    action.sa_sigaction = report_crash;
    action.sa_flags = SA_SIGINFO;
    ::sigemptyset(&action.sa_mask);
    if (::sigaction(f.signal, &action, &f.before) != 0) f.before = {};
  }
}

}  // namespace ballast
