#pragma once

#include <string>

#include "core/bytes.h"

namespace ballast {

// A file that two folders hold without taking its space twice: a hard link, or on another file
// system a symbolic link to the resolved path. Small files are copied, so that whoever edits one
// does not edit both; files of up to `copied_elsewhere` are copied where a hard link is impossible.
struct SharingLimits {
  Bytes copied{1 << 20};
  Bytes copied_elsewhere{64 << 20};
};
void share_file(const std::string& from, const std::string& to, const SharingLimits& limits = {});

// Every file below `from`, at most four folders deep; `to` is made. Hidden files are left out. Each
// failure is an Error of ErrorCode::io.
void share_folder(const std::string& from, const std::string& to, const SharingLimits& limits = {});

}  // namespace ballast
