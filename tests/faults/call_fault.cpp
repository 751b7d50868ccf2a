// Preloaded into a program: its n-th call of one kind fails, transfers half of its bytes, or ends
// the process (BALLAST_FAULT=CALL:ACTION:N, see fault.h). Kinds of calls: open, read, write, sync,
// rename, mkdir, map, thread. "bytes:ENOSPC:N": the disk is full after N written bytes.
//   BALLAST_FAULT_PATH    only files whose path holds this text count
//   BALLAST_FAULT_COUNTS  a file that gets the number of calls of each kind at the end, and more
//   BALLAST_FAULT_FIRED   a file that is made when the fault happens

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <vector>

#include "tests/faults/fault.h"

namespace {

using ballast::faults::Fault;

constexpr const char* kCalls[] = {"open",   "read",  "write", "sync",
                                  "rename", "mkdir", "map",   "thread"};
enum Call { kOpen, kRead, kWrite, kSync, kRename, kMkdir, kMap, kThread, kCallCount };

std::atomic<long> counts[kCallCount];
std::atomic<long> written{0};  // bytes
constexpr int kMaxFiles = 1 << 16;
std::atomic<bool> watched[kMaxFiles];  // by file descriptor

const Fault& fault() {
  static const Fault f = ballast::faults::read_fault();
  return f;
}

// Relative paths are below the folder that the program was started in.
bool path_counts(const char* path) {
  static const char* const part = std::getenv("BALLAST_FAULT_PATH");
  static const bool here = [] {
    char folder[4096];
    return part != nullptr && ::getcwd(folder, sizeof folder) != nullptr &&
           std::strstr(folder, part) != nullptr;
  }();
  if (part == nullptr) return true;
  return path != nullptr && (std::strstr(path, part) != nullptr || (here && path[0] != '/'));
}
bool file_counts(int fd) {
  if (std::getenv("BALLAST_FAULT_PATH") == nullptr) return true;
  return fd >= 0 && fd < kMaxFiles && watched[fd];
}
void opened(int fd, const char* path) {
  if (fd >= 0 && fd < kMaxFiles) watched[fd] = path_counts(path);
}

// What becomes of the next call of a kind.
struct Outcome {
  bool fails = false, halves = false, dies = false;
};
Outcome next_call(Call call) {
  const long n = ++counts[call];
  const Fault& f = fault();
  if (!f.concerns(kCalls[call]) || !f.hits(n)) return {};
  ballast::faults::mark_fired();
  ballast::faults::act(f);
  if (f.error != 0) errno = f.error;
  return {.fails = f.error != 0, .halves = f.shortened || f.kills_after, .dies = f.kills_after};
}

// real(bytes) is the call with that many bytes.
template <class Real>
ssize_t transfer(const Outcome& outcome, std::size_t bytes, Real&& real) {
  if (outcome.fails) return -1;
  const ssize_t done = real(outcome.halves && bytes > 1 ? bytes / 2 : bytes);
  if (outcome.dies) ::kill(::getpid(), SIGKILL);
  return done;
}
template <class Real>
ssize_t reading(int fd, std::size_t bytes, Real&& real) {
  return file_counts(fd) ? transfer(next_call(kRead), bytes, real) : real(bytes);
}
template <class Real>
ssize_t writing(int fd, std::size_t bytes, Real&& real) {
  if (!file_counts(fd)) return real(bytes);
  const long size = static_cast<long>(bytes), before = written.fetch_add(size);
  const long room = std::max(fault().first - before, 0L);
  if (fault().concerns("bytes") && room < size) {
    ballast::faults::mark_fired();
    if (room > 0) return real(static_cast<std::size_t>(room));
    errno = fault().error;
    return -1;
  }
  return transfer(next_call(kWrite), bytes, real);
}
template <class Real>
int simple(Call call, Real&& real) {
  const Outcome outcome = next_call(call);
  if (outcome.fails) return -1;
  const int done = real();
  if (outcome.dies) ::kill(::getpid(), SIGKILL);
  return done;
}

// The first `bytes` of a list of buffers.
std::vector<iovec> front_of(const iovec* buffers, int count, std::size_t bytes) {
  std::vector<iovec> front;
  for (int i = 0; i < count && bytes > 0; ++i) {
    front.push_back({buffers[i].iov_base, std::min(buffers[i].iov_len, bytes)});
    bytes -= front.back().iov_len;
  }
  return front;
}
std::size_t sum_of(const iovec* buffers, int count) {
  std::size_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += buffers[i].iov_len;
  return bytes;
}

// The most address space that the process ever had, in KiB: what ulimit -v bounds.
long most_address_space() {
  long kib = 0;
  if (std::FILE* const file = std::fopen("/proc/self/status", "r")) {
    char line[256];
    while (std::fgets(line, sizeof line, file) != nullptr) {
      if (std::sscanf(line, "VmPeak: %ld", &kib) == 1) break;
    }
    std::fclose(file);
  }
  return kib;
}

struct Report {
  ~Report() {
    char path[4096];
    if (!ballast::faults::find_counts_path(path)) return;
    long all[kCallCount];
    std::copy(std::begin(counts), std::end(counts), all);
    const long bytes = written;
    if (std::FILE* const file = std::fopen(path, "w")) {
      for (int i = 0; i < kCallCount; ++i) std::fprintf(file, "%s %ld\n", kCalls[i], all[i]);
      std::fprintf(file, "bytes %ld\naddress_kib %ld\n", bytes, most_address_space());
      std::fclose(file);
    }
  }
} report;

}  // namespace

#define REAL(name) \
  static const auto real = reinterpret_cast<decltype(&::name)>(::dlsym(RTLD_NEXT, #name))

extern "C" {

#define OPEN(name)                                                         \
  int name(const char* path, int flags, ...) {                             \
    REAL(name);                                                            \
    va_list more;                                                          \
    va_start(more, flags);                                                 \
    const mode_t mode = va_arg(more, mode_t);                              \
    va_end(more);                                                          \
    if (!path_counts(path)) return real(path, flags, mode);                \
    const int fd = simple(kOpen, [&] { return real(path, flags, mode); }); \
    opened(fd, path);                                                      \
    return fd;                                                             \
  }
OPEN(open)
OPEN(open64)

#define FOPEN(name)                                     \
  std::FILE* name(const char* path, const char* mode) { \
    REAL(name);                                         \
    if (!path_counts(path)) return real(path, mode);    \
    if (next_call(kOpen).fails) return nullptr;         \
    std::FILE* const file = real(path, mode);           \
    if (file != nullptr) opened(::fileno(file), path);  \
    return file;                                        \
  }
FOPEN(fopen)
FOPEN(fopen64)

DIR* opendir(const char* path) {
  REAL(opendir);
  if (path_counts(path) && next_call(kOpen).fails) return nullptr;
  return real(path);
}

int close(int fd) {
  REAL(close);
  if (fd >= 0 && fd < kMaxFiles) watched[fd] = false;
  return real(fd);
}

ssize_t read(int fd, void* bytes, std::size_t size) {
  REAL(read);
  return reading(fd, size, [&](std::size_t n) { return real(fd, bytes, n); });
}
ssize_t write(int fd, const void* bytes, std::size_t size) {
  REAL(write);
  return writing(fd, size, [&](std::size_t n) { return real(fd, bytes, n); });
}

#define PREAD(name)                                                                  \
  ssize_t name(int fd, void* bytes, std::size_t size, off_t at) {                    \
    REAL(name);                                                                      \
    return reading(fd, size, [&](std::size_t n) { return real(fd, bytes, n, at); }); \
  }
PREAD(pread)
PREAD(pread64)

#define PWRITE(name)                                                                 \
  ssize_t name(int fd, const void* bytes, std::size_t size, off_t at) {              \
    REAL(name);                                                                      \
    return writing(fd, size, [&](std::size_t n) { return real(fd, bytes, n, at); }); \
  }
PWRITE(pwrite)
PWRITE(pwrite64)

ssize_t readv(int fd, const iovec* buffers, int count) {
  REAL(readv);
  return reading(fd, sum_of(buffers, count), [&](std::size_t n) {
    const std::vector<iovec> front = front_of(buffers, count, n);
    return real(fd, front.data(), static_cast<int>(front.size()));
  });
}
ssize_t writev(int fd, const iovec* buffers, int count) {
  REAL(writev);
  return writing(fd, sum_of(buffers, count), [&](std::size_t n) {
    const std::vector<iovec> front = front_of(buffers, count, n);
    return real(fd, front.data(), static_cast<int>(front.size()));
  });
}

int fsync(int fd) {
  REAL(fsync);
  return file_counts(fd) ? simple(kSync, [&] { return real(fd); }) : real(fd);
}
int fdatasync(int fd) {
  REAL(fdatasync);
  return file_counts(fd) ? simple(kSync, [&] { return real(fd); }) : real(fd);
}

int rename(const char* from, const char* to) {
  REAL(rename);
  return path_counts(to) ? simple(kRename, [&] { return real(from, to); }) : real(from, to);
}
int mkdir(const char* path, mode_t mode) {
  REAL(mkdir);
  return path_counts(path) ? simple(kMkdir, [&] { return real(path, mode); }) : real(path, mode);
}

#define MMAP(name)                                                                           \
  void* name(void* address, std::size_t size, int protection, int flags, int fd, off_t at) { \
    REAL(name);                                                                              \
    const bool counts_here = fd < 0 || file_counts(fd);                                      \
    if (counts_here && next_call(kMap).fails) return MAP_FAILED;                             \
    return real(address, size, protection, flags, fd, at);                                   \
  }
MMAP(mmap)
MMAP(mmap64)

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                   void* argument) {
  REAL(pthread_create);
  if (next_call(kThread).fails) return fault().error;
  return real(thread, attributes, body, argument);
}

}  // extern "C"
