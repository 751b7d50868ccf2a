#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/checksum.h"
#include "memory/file_descriptor.h"

namespace ballast {

// A new file inside a folder that is committed as a whole (io/atomic_folder.h): written front to
// back, its checksum taken on the way. Allocates nothing per write, and never leaves more than two
// windows of 32 MiB in the page cache, however large the file: a run inside a memory limit must not
// be pushed out by its own checkpoint. Every failure is an Error of ErrorCode::io.
class HashedFile {
 public:
  explicit HashedFile(std::string path);  // which must not exist

  const std::string& path() const { return path_; }
  std::uint64_t written() const { return written_; }
  std::string checksum() const { return sum_.text(); }

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void close();  // forced to disk; nothing is written after it

 private:
  void write_out();

  std::string path_;
  FileDescriptor fd_;
  Checksum sum_;
  std::uint64_t written_ = 0;
  std::uint64_t started_ = 0;  // the kernel was asked to write up to here
  std::uint64_t dropped_ = 0;  // and has done so, and forgotten, up to here
};

}  // namespace ballast
