#include "app/output.h"

#include <unistd.h>

#include <cerrno>

#include "memory/disk_file.h"

namespace ballast {

void print(std::string_view text) {
  static bool reader_gone = false;
  while (!text.empty() && !reader_gone) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EPIPE) {
      reader_gone = true;
    } else if (errno != EINTR) {
      fail_io("standard output", "write", errno);
    }
  }
}

}  // namespace ballast
