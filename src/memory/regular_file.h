#pragma once

#include <sys/types.h>

#include <string>

#include "memory/file_descriptor.h"

namespace ballast {

// Opens a file that somebody else made, for reading: a regular one, without waiting for a FIFO's
// other end. Anything else of that name is an Error (ErrorCode::io). Every reader of foreign files
// (DiskFile, text_file.h) opens them by this.
FileDescriptor open_regular_file(const std::string& path);

// The kind of something that is neither a regular file nor a folder: "a FIFO".
const char* special_kind(mode_t mode);

}  // namespace ballast
