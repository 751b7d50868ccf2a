#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "memory/file_descriptor.h"

namespace ballast {

// A file that grows by whole records. A record is one write(2) at the end, so it belongs to the
// kernel when append() returns: a killed process loses nothing, a power cut the last seconds.
class AppendFile {
 public:
  enum class Open {
    fresh,     // an error where the file exists
    existing,  // made if it is not there
  };

  AppendFile() = default;  // no file
  AppendFile(std::string path, Open how);

  const std::string& path() const { return path_; }
  explicit operator bool() const { return static_cast<bool>(fd_); }
  std::uint64_t size() const;

  // Fails with ErrorCode::io. What a failed write left of the record (disk full) is cut off again,
  // so that a later one does not stand behind half of it.
  void append(std::string_view record);
  void truncate(std::uint64_t size);
  void sync();  // to the disk

 private:
  std::string path_;
  FileDescriptor fd_;
};

// "mkdir -p"; ErrorCode::io with the path.
void make_folders(const std::string& path);

}  // namespace ballast
