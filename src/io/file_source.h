#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "memory/disk_file.h"

namespace ballast {

// The bytes of a file, or of a part of one, open for reading through the page cache. Fails as
// DiskFile does.
class SourceFile {
 public:
  const std::string& path() const { return path_; }  // as it is shown
  std::uint64_t size() const { return size_; }
  // Fills `to` from [offset, offset + to.size()), which lies inside size().
  void read(std::uint64_t offset, std::span<std::byte> to) const;

 private:
  friend struct FileSource;
  explicit SourceFile(DiskFile file) : file_(std::move(file)) {}

  DiskFile file_;
  std::string path_;
  std::uint64_t start_ = 0, size_ = 0;
};

// Where the bytes of a media file or a caption are: a file of its own, or a member of an archive,
// which is read where it lies.
struct FileSource {
  std::string path;                     // as it is shown; of a member ARCHIVE/NAME
  std::string archive = {};             // the file that holds it; "": path itself
  std::uint64_t offset = 0, bytes = 0;  // of a member

  FileSource() = default;
  FileSource(std::string p) : path(std::move(p)) {}  // NOLINT: a path is a source
  FileSource(const char* p) : path(p) {}             // NOLINT

  bool is_member() const { return !archive.empty(); }
  // Fails with ErrorCode::input where an archive does not reach as far as its member.
  SourceFile open() const;
};

}  // namespace ballast
