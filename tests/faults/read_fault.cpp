// Preloaded into the program: the n-th read of a file fails with EIO, and every one after it.
// BALLAST_FAIL_READ is "n:ending" (1: the first), of files whose path ends so.

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace {

bool fails(int fd) {
  const char* const wanted = std::getenv("BALLAST_FAIL_READ");
  if (wanted == nullptr) return false;
  const std::string_view ending =
      std::string_view(wanted).substr(std::string_view(wanted).find(':') + 1);
  std::array<char, 64> link;
  std::array<char, 4096> path;
  std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", fd);
  const ssize_t length = ::readlink(link.data(), path.data(), path.size());
  if (length <= 0) return false;
  if (!std::string_view(path.data(), static_cast<std::size_t>(length)).ends_with(ending)) {
    return false;
  }
  static std::atomic<int> calls{0};
  if (++calls < std::atoi(wanted)) return false;
  errno = EIO;
  return true;
}

}  // namespace

extern "C" ssize_t read(int fd, void* to, size_t bytes) {
  static const auto real = reinterpret_cast<decltype(&read)>(::dlsym(RTLD_NEXT, "read"));
  return fails(fd) ? -1 : real(fd, to, bytes);
}

extern "C" ssize_t pread(int fd, void* to, size_t bytes, off_t offset) {
  static const auto real = reinterpret_cast<decltype(&pread)>(::dlsym(RTLD_NEXT, "pread"));
  return fails(fd) ? -1 : real(fd, to, bytes, offset);
}

extern "C" ssize_t pread64(int fd, void* to, size_t bytes, off64_t offset) {
  static const auto real = reinterpret_cast<decltype(&pread64)>(::dlsym(RTLD_NEXT, "pread64"));
  return fails(fd) ? -1 : real(fd, to, bytes, offset);
}
