#include "core/library_path.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "core/log.h"

namespace ballast {

std::optional<std::string> absolute_library_path(std::string_view path) {
  if (path.empty()) return std::nullopt;  // as good as unset
  std::string kept;
  bool dropped = false;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find_first_of(":;", begin), path.size());
    const std::string_view folder = path.substr(begin, end - begin);
    if (folder.starts_with('/') || folder.starts_with("$ORIGIN")) {
      if (!kept.empty()) kept += ':';
      kept += folder;
    } else {
      dropped = true;
    }
    begin = end + 1;
  }
  return dropped ? std::optional(kept) : std::nullopt;
}

void use_absolute_library_path(char** argv) {
  constexpr const char* kName = "LD_LIBRARY_PATH";
  const char* const path = std::getenv(kName);
  const auto absolute = path == nullptr ? std::nullopt : absolute_library_path(path);
  if (!absolute) return;
  if (absolute->empty()) {
    ::unsetenv(kName);
  } else if (::setenv(kName, absolute->c_str(), 1) != 0) {
    return;
  }
  ::execv("/proc/self/exe", argv);
  log::warn("LD_LIBRARY_PATH names the current folder: libraries may be loaded from there");
}

}  // namespace ballast
