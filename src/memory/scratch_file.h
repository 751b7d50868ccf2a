#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/bytes.h"
#include "memory/disk_file.h"
#include "memory/file_descriptor.h"

namespace ballast {

// Space on disk for bytes that wait outside memory while the process runs. The file has no name: it
// is unlinked as soon as it is open, so its space is free again however the process ends, and
// nobody ever reads the file of another run. All bytes are zero at first.
//
// Aligned calls have offsets, lengths and addresses that are multiples of kDiskAlignment; they
// allocate nothing and may run on several threads at once. Failures are Errors of ErrorCode::io.
class ScratchFile {
 public:
  ScratchFile() = default;  // no space
  // Takes all the space now: a full disk shows here, with what is missing, and never later.
  static ScratchFile create(const std::string& folder, Bytes size);

  Bytes size() const { return size_; }
  bool direct() const { return static_cast<bool>(direct_); }  // past the page cache

  void read_aligned(std::uint64_t offset, std::span<std::byte> to) const;
  void write_aligned(std::uint64_t offset, std::span<const std::byte> from) const;
  void zero_aligned(std::uint64_t offset, std::uint64_t bytes) const;

  // Any range, through the page cache, of which nothing is left behind; never at the same time as
  // an aligned call. For checkpoints.
  void read(std::uint64_t offset, std::span<std::byte> to) const;
  void write(std::uint64_t offset, std::span<const std::byte> from) const;

 private:
  void open_direct(const std::string& path);
  void check_range(std::uint64_t offset, std::uint64_t bytes) const;
  void check_aligned(std::uint64_t offset, const std::byte* data, std::uint64_t bytes) const;

  std::string folder_;
  FileDescriptor buffered_;
  FileDescriptor direct_;  // none where the file system has no direct writes
  Bytes size_;
};

}  // namespace ballast
