#include "report/line_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "memory/disk_file.h"
#include "memory/file_descriptor.h"

namespace ballast {

void for_each_line(const std::string& path, const std::function<bool(const FileLine&)>& visit,
                   std::size_t longest) {
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) fail_io(path, "open it", errno);
  std::vector<char> piece(1 << 16);
  std::string line;
  FileLine found;
  const auto flush = [&](bool complete) {
    found.text = found.too_long ? std::string_view() : std::string_view(line);
    found.complete = complete;
    const bool more = visit(found);
    line.clear();
    found.too_long = false;
    return more;
  };
  std::uint64_t at = 0, begin = 0;
  for (;;) {
    const ssize_t got = ::read(fd.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_io(path, "read it", errno);
    if (got == 0) break;
    std::string_view rest(piece.data(), static_cast<std::size_t>(got));
    while (!rest.empty()) {
      const std::size_t newline = rest.find('\n');
      const std::string_view part = rest.substr(0, newline);
      if (line.size() + part.size() > longest) found.too_long = true;
      if (!found.too_long) line += part;
      const bool ended = newline != std::string_view::npos;
      at += part.size() + (ended ? 1 : 0);
      rest.remove_prefix(part.size() + (ended ? 1 : 0));
      if (!ended) break;
      found.end = at;
      begin = at;
      if (!flush(true)) return;
    }
  }
  found.end = at;
  if (at > begin) flush(false);
}

}  // namespace ballast
