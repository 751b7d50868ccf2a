#include "memory/disk_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <system_error>

#include "core/error.h"
#include "core/system_limits.h"
#include "core/to_size.h"
#include "memory/regular_file.h"

namespace ballast {
namespace {

// statx() answers what direct I/O needs since Linux 6.1; older headers lack the fields.
constexpr unsigned kStatxDirectAlignment = 0x2000;

template <class Statx>
std::uint64_t direct_alignment(int fd) {
  if constexpr (requires(Statx s) { s.stx_dio_offset_align; }) {
    Statx s{};
    if (::statx(fd, "", AT_EMPTY_PATH, kStatxDirectAlignment, &s) == 0 &&
        (s.stx_mask & kStatxDirectAlignment) != 0) {
      return std::max<std::uint64_t>(s.stx_dio_offset_align, s.stx_dio_mem_align);
    }
  }
  return 0;
}

bool refuses_direct(int error) { return error == EINVAL || error == EOPNOTSUPP || error == ENOSYS; }

void drop_cache(int fd, std::uint64_t offset, std::uint64_t bytes) {
  // The kernel drops whole pages only. A page that a neighbour still wanted is read again.
  const AlignedRange pages = widen(offset, bytes);
  if (pages.bytes == 0) return;
  ::posix_fadvise(fd, static_cast<off_t>(pages.offset), static_cast<off_t>(pages.bytes),
                  POSIX_FADV_DONTNEED);
}

[[noreturn]] void fail_read(const std::string& path, std::uint64_t offset, std::size_t bytes,
                            int error) {
  fail_io(path, fmt::format("read {} bytes at offset {}", bytes, offset), error);
}

// Wrong input, as when it was short from the start: what is wrong does not depend on the moment.
[[noreturn]] void fail_shrank(const std::string& path, std::uint64_t offset, std::uint64_t size) {
  fail(ErrorCode::input,
       "{}: the file shrank while it was in use: it had {} bytes when "
       "opened and now ends at offset {}",
       path, size, offset);
}

// Nanoseconds.
std::int64_t modified(const struct stat& s) {
  return std::int64_t{s.st_mtim.tv_sec} * 1'000'000'000 + s.st_mtim.tv_nsec;
}

}  // namespace

void fail_io(std::string_view path, std::string_view doing, int error) {
  fail(ErrorCode::io,
       fmt::format("{}: cannot {}: {}", path, doing, std::generic_category().message(error)),
       advice_for_errno(error));
}

AlignedRange widen(std::uint64_t offset, std::uint64_t bytes, std::uint64_t alignment) {
  check(std::has_single_bit(alignment), "alignment {} is not a power of two", alignment);
  const std::uint64_t begin = offset & ~(alignment - 1);
  if (bytes == 0) return {begin, 0, offset - begin};
  std::uint64_t end = 0;
  const bool overflow = __builtin_add_overflow(offset, bytes, &end) ||
                        __builtin_add_overflow(end, alignment - 1, &end);
  check(!overflow, "range of {} bytes at {} passes 2^64", bytes, offset);
  return {begin, (end & ~(alignment - 1)) - begin, offset - begin};
}

DiskFile DiskFile::open(std::string path, DiskMode mode) {
  FileDescriptor fd = open_regular_file(path);
  struct stat s {};
  if (::fstat(fd.get(), &s) != 0) fail_io(path, "stat", errno);
  DiskFile file(std::move(path), std::move(fd));
  file.size_ = static_cast<std::uint64_t>(s.st_size);
  file.volume_ = s.st_dev;
  file.inode_ = s.st_ino;
  file.modified_ = modified(s);
  file.alignment_ =
      std::max(kDiskAlignment, std::bit_ceil(direct_alignment<struct statx>(file.buffered_.get())));
  if (mode != DiskMode::buffered) file.open_direct(mode == DiskMode::direct);
  return file;
}

void DiskFile::check_unchanged() const {
  struct stat now {};
  if (::fstat(buffered_.get(), &now) != 0) fail_io(path_, "stat", errno);
  struct stat named {};
  const bool replaced =
      ::stat(path_.c_str(), &named) == 0 && (named.st_dev != volume_ || named.st_ino != inode_);
  std::string_view how;
  if (replaced) {
    how = "another file has its name";
  } else if (static_cast<std::uint64_t>(now.st_size) != size_) {
    how = "its size is another";
  } else if (modified(now) != modified_) {
    how = "somebody wrote to it";
  }
  if (how.empty()) return;
  fail(ErrorCode::input, fmt::format("{}: changed while it was in use: {}", path_, how),
       {{"leave files alone that a run reads", "copy a model to another name instead"}});
}

void DiskFile::open_direct(bool required) {
  FileDescriptor fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_DIRECT));
  if (!fd) {
    if (!required && refuses_direct(errno)) return;
    fail_io(path_, "open for direct reads", errno);
  }
  // Some file systems take the flag and refuse the read, so one block decides.
  const std::unique_ptr<void, void (*)(void*)> block(std::aligned_alloc(alignment_, alignment_),
                                                     &std::free);
  check(block != nullptr, "no memory for one block of {} bytes", alignment_);
  ssize_t got = 0;
  do {
    got = ::pread(fd.get(), block.get(), alignment_, 0);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    if (!required && refuses_direct(errno)) return;
    fail_io(path_, "read directly at offset 0", errno);
  }
  direct_ = std::move(fd);
}

void DiskFile::read(std::uint64_t offset, std::span<std::byte> to, PageCache cache) const {
  check(offset <= size_ && to.size() <= size_ - offset,
        "read of {} bytes at {} past the end of a file of {}", to.size(), offset, size_);
  read_buffered(offset, to, cache);
}

void DiskFile::expect(std::uint64_t offset, std::uint64_t bytes) const noexcept {
  ::posix_fadvise(buffered_.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes),
                  POSIX_FADV_WILLNEED);
}

std::size_t DiskFile::read_aligned(std::uint64_t offset, std::span<std::byte> to,
                                   PageCache cache) const {
  const std::uint64_t mask = alignment_ - 1;
  check((offset & mask) == 0 && (to.size() & mask) == 0 &&
            (reinterpret_cast<std::uintptr_t>(to.data()) & mask) == 0,
        "direct read of {} bytes at {} to {}: not all multiples of {}", to.size(), offset,
        fmt::ptr(to.data()), alignment_);
  if (offset >= size_) return 0;
  const std::size_t wanted = std::min<std::uint64_t>(to.size(), size_ - offset);
  if (direct_) return read_direct(offset, to, wanted);
  read_buffered(offset, to.first(wanted), cache);
  return wanted;
}

void DiskFile::read_buffered(std::uint64_t offset, std::span<std::byte> to, PageCache cache) const {
  std::size_t done = 0;
  while (done < to.size()) {
    const ssize_t got = ::pread(buffered_.get(), to.data() + done, to.size() - done,
                                static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_read(path_, offset + done, to.size() - done, errno);
    if (got == 0) fail_shrank(path_, offset + done, size_);
    done += to_size(got);
  }
  if (cache == PageCache::drop) drop_cache(buffered_.get(), offset, to.size());
}

std::size_t DiskFile::read_direct(std::uint64_t offset, std::span<std::byte> to,
                                  std::size_t wanted) const {
  std::size_t done = 0;
  while (done < wanted) {
    const ssize_t got = ::pread(direct_.get(), to.data() + done, to.size() - done,
                                static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_read(path_, offset + done, to.size() - done, errno);
    const auto bytes = to_size(got);
    if (done + bytes >= wanted) break;
    // A read cut inside a block goes on from that block's start; one that gains no block goes on
    // without direct reads, which tells a short read from a file that shrank.
    const std::size_t blocks = bytes & ~(alignment_ - 1);
    if (blocks == 0) {
      read_buffered(offset + done, to.subspan(done, wanted - done), PageCache::drop);
      return wanted;
    }
    done += blocks;
  }
  return wanted;
}

}  // namespace ballast
