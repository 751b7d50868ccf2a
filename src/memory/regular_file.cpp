#include "memory/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "core/error.h"
#include "memory/disk_file.h"

namespace ballast {

FileDescriptor open_regular_file(const std::string& path) {
  // O_NONBLOCK keeps open() from waiting for the other end of a FIFO; files ignore it.
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) fail_io(path, "open", errno);
  struct stat s {};
  if (::fstat(fd.get(), &s) != 0) fail_io(path, "stat", errno);
  if (S_ISDIR(s.st_mode)) fail_io(path, "read it as a file", EISDIR);
  if (!S_ISREG(s.st_mode)) {
    fail(ErrorCode::io, "{} is {}, not a regular file", path, special_kind(s.st_mode));
  }
  return fd;
}

const char* special_kind(mode_t mode) {
  if (S_ISCHR(mode)) return "a character device";
  if (S_ISBLK(mode)) return "a block device";
  if (S_ISFIFO(mode)) return "a FIFO";
  return "a socket";
}

}  // namespace ballast
