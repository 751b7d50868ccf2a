#include "memory/scratch_file.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "core/error.h"
#include "core/to_size.h"

namespace ballast {
namespace {

constexpr std::size_t kZeroBytes = 64 << 10;
alignas(kDiskAlignment) constexpr std::byte kZeros[kZeroBytes] = {};

Bytes free_space(const std::string& folder) {
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) return {};
  return {static_cast<std::uint64_t>(disk.f_bavail) * disk.f_frsize};
}

[[noreturn]] void fail_full(const std::string& folder, Bytes size) {
  const Bytes free = free_space(folder), missing = size - std::min(size, free);
  fail(ErrorCode::io,
       fmt::format(
           "{}: the optimizer's state takes {} there, {} are free: {} ({} bytes) are missing",
           folder, size, free, missing, missing.count),
       {{fmt::format("free {} on that disk, or set another output_dir", missing),
         "nothing was changed yet"},
        {fmt::format("--disk {}MB", free.count / 1000000),
         "plans for what is there, where RAM has room for the rest"}});
}

void read_all(int fd, const std::string& folder, std::uint64_t offset, std::span<std::byte> to) {
  for (std::size_t done = 0; done < to.size();) {
    const ssize_t got =
        ::pread(fd, to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      fail_io(folder,
              fmt::format("read {} bytes of scratch space at offset {}", to.size() - done,
                          offset + done),
              got < 0 ? errno : EIO);
    }
    done += to_size(got);
  }
}

void write_all(int fd, const std::string& folder, std::uint64_t offset,
               std::span<const std::byte> from) {
  for (std::size_t done = 0; done < from.size();) {
    const ssize_t wrote =
        ::pwrite(fd, from.data() + done, from.size() - done, static_cast<off_t>(offset + done));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      fail_io(folder,
              fmt::format("write {} bytes of scratch space at offset {}", from.size() - done,
                          offset + done),
              wrote < 0 ? errno : EIO);
    }
    done += to_size(wrote);
  }
}

// Without this gigabytes of dirty pages would stand where a run counts every byte.
void leave_no_pages(int fd, std::uint64_t offset, std::uint64_t bytes, bool written) {
  const AlignedRange pages = widen(offset, bytes);
  const auto at = static_cast<off_t>(pages.offset), length = static_cast<off_t>(pages.bytes);
  if (length == 0) return;
  if (written) {
    ::sync_file_range(
        fd, at, length,
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
  }
  ::posix_fadvise(fd, at, length, POSIX_FADV_DONTNEED);
}

}  // namespace

ScratchFile ScratchFile::create(const std::string& folder, Bytes size) {
  ScratchFile file;
  file.folder_ = folder;
  file.size_ = size;
  std::string path = folder + "/.scratch_XXXXXX";
  file.buffered_ = FileDescriptor(::mkostemp(path.data(), O_CLOEXEC));
  if (!file.buffered_) fail_io(folder, "make a scratch file", errno);
  file.open_direct(path);
  ::unlink(path.c_str());
  if (size.count == 0) return file;
  const int error = ::posix_fallocate(file.buffered_.get(), 0, static_cast<off_t>(size.count));
  if (error == ENOSPC || error == EDQUOT) fail_full(folder, size);
  if (error != 0) fail_io(folder, fmt::format("take {} of scratch space", size), error);
  return file;
}

// One block decides: some file systems take the flag and refuse the write.
void ScratchFile::open_direct(const std::string& path) {
  FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_DIRECT));
  constexpr auto kBlock = static_cast<ssize_t>(kDiskAlignment);
  if (!fd || ::pwrite(fd.get(), kZeros, kDiskAlignment, 0) != kBlock) return;
  direct_ = std::move(fd);
}

void ScratchFile::check_range(std::uint64_t offset, std::uint64_t bytes) const {
  check(offset <= size_.count && bytes <= size_.count - offset,
        "{} bytes at {} of a scratch file of {}", bytes, offset, size_.count);
}

void ScratchFile::check_aligned(std::uint64_t offset, const std::byte* data,
                                std::uint64_t bytes) const {
  check_range(offset, bytes);
  check(offset % kDiskAlignment == 0 && bytes % kDiskAlignment == 0 &&
            reinterpret_cast<std::uintptr_t>(data) % kDiskAlignment == 0,
        "{} bytes at {} of a scratch file, at {} in memory: not all multiples of {}", bytes, offset,
        fmt::ptr(data), kDiskAlignment);
}

void ScratchFile::read_aligned(std::uint64_t offset, std::span<std::byte> to) const {
  check_aligned(offset, to.data(), to.size());
  if (direct_) return read_all(direct_.get(), folder_, offset, to);
  read(offset, to);
}

void ScratchFile::write_aligned(std::uint64_t offset, std::span<const std::byte> from) const {
  check_aligned(offset, from.data(), from.size());
  if (direct_) return write_all(direct_.get(), folder_, offset, from);
  write(offset, from);
}

void ScratchFile::zero_aligned(std::uint64_t offset, std::uint64_t bytes) const {
  check_aligned(offset, nullptr, bytes);
  if (bytes == 0) return;
  if (::fallocate(buffered_.get(), FALLOC_FL_ZERO_RANGE, static_cast<off_t>(offset),
                  static_cast<off_t>(bytes)) == 0) {
    return;
  }
  for (std::uint64_t done = 0; done < bytes; done += kZeroBytes) {
    write_aligned(offset + done, std::span(kZeros).first(std::min(kZeroBytes, bytes - done)));
  }
}

void ScratchFile::read(std::uint64_t offset, std::span<std::byte> to) const {
  check_range(offset, to.size());
  read_all(buffered_.get(), folder_, offset, to);
  leave_no_pages(buffered_.get(), offset, to.size(), false);
}

void ScratchFile::write(std::uint64_t offset, std::span<const std::byte> from) const {
  check_range(offset, from.size());
  write_all(buffered_.get(), folder_, offset, from);
  leave_no_pages(buffered_.get(), offset, from.size(), true);
}

}  // namespace ballast
