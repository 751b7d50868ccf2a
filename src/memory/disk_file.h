#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "memory/file_descriptor.h"

namespace ballast {

enum class DiskMode {
  direct,     // past the page cache (O_DIRECT); an error where the file system refuses
  buffered,   // through the page cache
  automatic,  // direct where it works, else buffered
};

// What a buffered read leaves behind. Direct reads leave nothing either way.
enum class PageCache { keep, drop };

// Offsets, lengths and addresses of direct reads are multiples of this, or of the file system's own
// number where that is larger: never smaller, so that plans are the same on every common disk.
inline constexpr std::uint64_t kDiskAlignment = 4096;

// How a large file is read and written fastest: so many requests of so many bytes in flight. Larger
// and fewer ones had a tenth less (decision 44). Requests begin and end at multiples of it in the
// file where they can: a disk takes them apart into parts of a size of its own, and a rest that is
// no whole part costs as much as one.
inline constexpr std::uint64_t kDiskRequest = 512 << 10;
inline constexpr int kDiskReaders = 16;

// The enclosing range whose ends are multiples of the alignment.
struct AlignedRange {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t skip = 0;  // the wanted bytes begin this far into the range

  friend bool operator==(const AlignedRange&, const AlignedRange&) = default;
};

// alignment is a power of two; offset + bytes, rounded up, must fit 64 bits. No bytes give no
// range.
AlignedRange widen(std::uint64_t offset, std::uint64_t bytes,
                   std::uint64_t alignment = kDiskAlignment);

// A regular file open for reading. Reads take their position as an argument, allocate nothing and
// may run on several threads at once. Every failure is an Error that names the path, the offset and
// the reason: ErrorCode::io when the system refused, ErrorCode::input when the file has become
// shorter than it was when it was opened.
class DiskFile {
 public:
  // Whether direct reads work is found out here, by reading one block: mode() never changes later,
  // and a direct read that the file system refuses after that is an error.
  static DiskFile open(std::string path, DiskMode mode = DiskMode::automatic);

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }  // when it was opened
  DiskMode mode() const { return direct_ ? DiskMode::direct : DiskMode::buffered; }
  std::uint64_t alignment() const { return alignment_; }
  // Fails with ErrorCode::input where somebody has written to the file since it was opened or put
  // another one under its name. A name that is gone is no change: the bytes are still there.
  void check_unchanged() const;

  // Fills `to` from [offset, offset + to.size()), which lies inside size(); any alignment. Goes
  // through the page cache in every mode: for headers and small tensors.
  void read(std::uint64_t offset, std::span<std::byte> to, PageCache cache = PageCache::keep) const;

  // read() of these bytes will follow: the system begins to fetch them, and many such requests are
  // under way at once. A hint: it never fails, and a system that does not take it only reads later.
  void expect(std::uint64_t offset, std::uint64_t bytes) const noexcept;

  // offset, to.size() and to.data() are multiples of alignment(), in buffered mode too, so that a
  // caller is right on both or on neither. Returns the bytes read: all, or up to the end of file.
  std::size_t read_aligned(std::uint64_t offset, std::span<std::byte> to,
                           PageCache cache = PageCache::keep) const;

 private:
  DiskFile(std::string path, FileDescriptor buffered) noexcept
      : path_(std::move(path)), buffered_(std::move(buffered)) {}
  void open_direct(bool required);
  void read_buffered(std::uint64_t offset, std::span<std::byte> to, PageCache cache) const;
  std::size_t read_direct(std::uint64_t offset, std::span<std::byte> to, std::size_t wanted) const;

  std::string path_;
  FileDescriptor buffered_;
  FileDescriptor direct_;  // none in buffered mode
  std::uint64_t size_ = 0;
  std::uint64_t alignment_ = kDiskAlignment;
  std::uint64_t volume_ = 0, inode_ = 0;  // when it was opened
  std::int64_t modified_ = 0;             // nanoseconds
};

// A piece of a file, as read lists hold it.
struct Extent {
  const DiskFile* file = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// Ends with ErrorCode::io and the text of errno: "<path>: cannot <doing>: No such file".
[[noreturn]] void fail_io(std::string_view path, std::string_view doing, int error);

}  // namespace ballast
