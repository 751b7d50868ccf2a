#pragma once

// Which call of a program fails, and how: BALLAST_FAULT=CALL:ACTION:N, "write:EIO:3". With "3+" all
// later calls fail too. With BALLAST_FAULT_RANK=R only rank R of a job is concerned. Nothing here
// allocates: allocation_fault.cpp replaces malloc.

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace ballast::faults {

struct Fault {
  char call[16] = "";        // "read", "write", ...; empty: nothing fails
  int error = 0;             // errno of the call that fails
  bool shortened = false;    // it transfers half of its bytes
  int signal = 0;            // sent instead of the call: SIGKILL, SIGTERM, SIGSTOP, SIGSEGV
  bool exits = false;        // the process ends in silence, with exit code 1
  bool launcher = false;     // SIGKILL for the process that started this one
  bool kills_after = false;  // SIGKILL behind it; behind half of a write
  long first = 0;            // counted from 1
  bool onwards = false;

  bool concerns(const char* name) const { return std::strcmp(call, name) == 0; }
  bool hits(long n) const { return onwards ? n >= first : n == first; }
};

inline void read_action(const char* text, std::size_t size, Fault& fault) {
  const auto is = [&](const char* name) {
    return std::strlen(name) == size && std::strncmp(text, name, size) == 0;
  };
  constexpr struct {
    const char* name;
    int value;
  } kErrors[] = {{"EIO", EIO},     {"ENOSPC", ENOSPC}, {"EMFILE", EMFILE}, {"EACCES", EACCES},
                 {"EINTR", EINTR}, {"ENOMEM", ENOMEM}, {"EAGAIN", EAGAIN}};
  for (const auto& e : kErrors) {
    if (is(e.name)) fault.error = e.value;
  }
  fault.shortened = is("short");
  constexpr struct {
    const char* name;
    int value;
  } kSignals[] = {{"kill", SIGKILL}, {"term", SIGTERM}, {"stop", SIGSTOP}, {"segv", SIGSEGV}};
  for (const auto& s : kSignals) {
    if (is(s.name)) fault.signal = s.value;
  }
  fault.exits = is("exit");
  fault.launcher = is("launcher");
  fault.kills_after = is("kill-after");
}

inline bool is_concerned_rank() {
  const char* const wanted = std::getenv("BALLAST_FAULT_RANK");
  const char* const own = std::getenv("BALLAST_RANK");
  return wanted == nullptr || (own != nullptr && std::strcmp(wanted, own) == 0);
}

// Does to this process what is no error of a call.
inline void act(const Fault& fault) {
  if (fault.signal != 0) ::kill(::getpid(), fault.signal);
  if (fault.exits) ::_exit(1);
  if (fault.launcher) ::kill(::getppid(), SIGKILL);
}

// Ends the process where the variable cannot be read: a matrix of faults that never happen would
// pass.
inline Fault read_fault() {
  Fault fault;
  const char* const text = std::getenv("BALLAST_FAULT");
  if (text == nullptr || *text == '\0') return fault;
  const char* const action = std::strchr(text, ':');
  const char* const number = action != nullptr ? std::strchr(action + 1, ':') : nullptr;
  if (number != nullptr && static_cast<std::size_t>(action - text) < sizeof fault.call) {
    std::memcpy(fault.call, text, static_cast<std::size_t>(action - text));
    read_action(action + 1, static_cast<std::size_t>(number - action - 1), fault);
    char* end = nullptr;
    fault.first = std::strtol(number + 1, &end, 10);
    fault.onwards = *end == '+';
    const bool acts = fault.error != 0 || fault.shortened || fault.signal != 0 || fault.exits ||
                      fault.launcher || fault.kills_after;
    if (acts && fault.first > 0) return is_concerned_rank() ? fault : Fault{};
  }
  constexpr char kMessage[] = "BALLAST_FAULT is CALL:ACTION:N\n";
  [[maybe_unused]] const ssize_t ignored = ::write(2, kMessage, sizeof kMessage - 1);
  ::_exit(125);
}

// The file that BALLAST_FAULT_COUNTS names, for ranks of a job one each: name.R. False: none.
inline bool find_counts_path(char (&path)[4096]) {
  const char* const name = std::getenv("BALLAST_FAULT_COUNTS");
  if (name == nullptr) return false;
  const char* const rank = std::getenv("BALLAST_RANK");
  std::snprintf(path, sizeof path, "%s%s%s", name, rank != nullptr ? "." : "",
                rank != nullptr ? rank : "");
  return true;
}

// Leaves the file that BALLAST_FAULT_FIRED names: the fault has happened.
inline void mark_fired() {
  const char* const path = std::getenv("BALLAST_FAULT_FIRED");
  if (path == nullptr) return;
  const int fd = ::openat(AT_FDCWD, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd >= 0) ::close(fd);
}

}  // namespace ballast::faults
