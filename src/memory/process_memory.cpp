#include "memory/process_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>

#include "core/to_size.h"
#include "memory/proc_text.h"

namespace ballast {
namespace {

// The lines we read stand in the first kilobyte or two; masks of large machines follow and are cut.
using Buffer = std::array<char, 8192>;

// Empty when the file cannot be read.
std::string_view read_into(Buffer& buffer, const char* directory, const char* name) {
  const int dir = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (dir < 0) return {};
  const int file = openat(dir, name, O_RDONLY | O_CLOEXEC);
  close(dir);
  if (file < 0) return {};
  std::size_t size = 0;
  while (size < buffer.size()) {
    const ssize_t got = read(file, buffer.data() + size, buffer.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    size += to_size(got);
  }
  close(file);
  return {buffer.data(), size};
}

}  // namespace

std::optional<ProcessMemory> process_memory(Counting counting, const char* proc_self) {
  Buffer buffer;
  const std::string_view status = read_into(buffer, proc_self, "status");
  auto anonymous = kilobytes_of(status, "RssAnon:");
  const auto shared = kilobytes_of(status, "RssShmem:");
  if (counting == Counting::exact) {
    const std::string_view rollup = read_into(buffer, proc_self, "smaps_rollup");
    if (const auto walked = kilobytes_of(rollup, "Anonymous:")) anonymous = walked;
  }
  if (!anonymous || !shared) return std::nullopt;
  return ProcessMemory{{*anonymous}, {*shared}};
}

}  // namespace ballast
