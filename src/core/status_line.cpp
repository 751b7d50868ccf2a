#include "core/status_line.h"

#include <sys/ioctl.h>

namespace ballast {

int StatusLine::columns_of(std::FILE* file) {
  winsize size = {};
  const bool known = ioctl(fileno(file), TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return std::min(known ? size.ws_col - 1 : 79, kMaxColumns);
}

void StatusLine::write(std::FILE* file, bool terminal, bool last) {
  if (terminal) std::fputs("\033[K", file);
  text_[size_] = terminal && !last ? '\r' : '\n';
  std::fwrite(text_.data(), 1, size_ + 1, file);
  std::fflush(file);
}

}  // namespace ballast
