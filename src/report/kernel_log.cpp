#include "report/kernel_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <vector>

#include "core/to_size.h"
#include "memory/file_descriptor.h"
#include "memory/proc_text.h"

namespace ballast {
namespace {

// "6,1234,98765432,-;Out of memory: Killed process 12 (ballast) total-vm:...": priority, sequence
// number, microseconds since boot, flags, text.
std::optional<std::string> match(std::string_view record, std::string_view killed, double after) {
  std::string_view text = record;
  std::string_view prefix = take(text, ';');
  take(prefix, ',');
  take(prefix, ',');
  const auto microseconds = parse_number(take(prefix, ','));
  if (!microseconds || static_cast<double>(*microseconds) * 1e-6 < after) return std::nullopt;
  if (text.find(killed) == std::string_view::npos) return std::nullopt;
  return std::string(text);
}

}  // namespace

std::optional<std::string> find_oom_kill(std::int64_t pid, double after,
                                         const std::filesystem::path& root) {
  constexpr std::size_t kMax = 16 << 20;
  const FileDescriptor fd(::open((root / "dev/kmsg").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!fd) return std::nullopt;
  const std::string killed = fmt::format("Killed process {} (", pid);
  std::optional<std::string> found;
  std::vector<char> piece(8192);  // the longest record the kernel hands out
  std::string line;
  for (std::size_t total = 0; total < kMax;) {
    const ssize_t got = ::read(fd.get(), piece.data(), piece.size());
    if (got < 0 && (errno == EINTR || errno == EPIPE)) {  // EPIPE: that record was overwritten
      total += 64;
      continue;
    }
    if (got <= 0) break;
    total += to_size(got);
    for (ssize_t i = 0; i < got; ++i) {
      const char c = piece[to_size(i)];
      if (c != '\n') {
        line += c;
        continue;
      }
      if (auto text = match(line, killed, after)) found = std::move(text);
      line.clear();
    }
  }
  return found;
}

}  // namespace ballast
