#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "memory/file_descriptor.h"

namespace ballast {

// A folder that is read by names from outside. A name counts only where the folder's listing has it
// at that moment; names that begin with a dot, links and what is no regular file are not there.
class WatchedFolder {
 public:
  // Fails with ErrorCode::io.
  static WatchedFolder open(const std::string& path);

  std::vector<std::string> names() const;  // sorted; empty where it cannot be listed
  bool has(std::string_view name) const;
  std::optional<WatchedFolder> folder(std::string_view name) const;
  FileDescriptor file(std::string_view name) const;  // for reading; none where it is not there

 private:
  explicit WatchedFolder(FileDescriptor fd) : fd_(std::move(fd)) {}

  FileDescriptor fd_;
};

struct FileFacts {
  std::uint64_t device = 0, inode = 0, size = 0;
  double changed = 0;  // seconds since 1970
};
std::optional<FileFacts> facts_of(const FileDescriptor& file);

// Up to `bytes` from `offset` on; fewer at the end of the file.
std::string read_at(const FileDescriptor& file, std::uint64_t offset, std::size_t bytes);

}  // namespace ballast
