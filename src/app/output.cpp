#include "app/output.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "core/status_line.h"
#include "core/wrap_text.h"
#include "memory/disk_file.h"

namespace ballast {
namespace {

// Also one that was closed: isatty() no longer tells then.
bool is_terminal() {
  struct stat s {};
  return ::fstat(STDOUT_FILENO, &s) == 0 && S_ISCHR(s.st_mode);
}

}  // namespace

void print(std::string_view text) {
  static bool reader_gone = false;
  while (!text.empty() && !reader_gone) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    const int error = errno;
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (error == EPIPE || (error == EIO && is_terminal())) {
      reader_gone = true;
    } else if (error != EINTR) {
      fail_io("standard output", "write", error);
    }
  }
}

std::size_t text_columns(std::FILE* file) {
  if (isatty(fileno(file)) == 0) return kPlainColumns;
  return static_cast<std::size_t>(StatusLine::columns_of(file));
}

}  // namespace ballast
