#include "io/hashed_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/error.h"
#include "core/to_size.h"
#include "memory/disk_file.h"

namespace ballast {
namespace {

// The piece that is hashed and then written, while it is still in the processor's cache.
constexpr std::size_t kPiece = 1 << 20;
constexpr std::uint64_t kWindow = 32 << 20;

}  // namespace

HashedFile::HashedFile(std::string path)
    : path_(std::move(path)),
      fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
  if (!fd_) fail_io(path_, "create the file", errno);
}

void HashedFile::write(std::span<const std::byte> bytes) {
  check(static_cast<bool>(fd_), "{} was written after close", path_);
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), kPiece));
    sum_.add(piece);
    for (auto left = piece; !left.empty();) {
      const ssize_t put = ::write(fd_.get(), left.data(), left.size());
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) {
        fail_io(path_, fmt::format("write {} bytes at offset {}", left.size(), written_), errno);
      }
      left = left.subspan(to_size(put));
      written_ += static_cast<std::uint64_t>(put);
    }
    bytes = bytes.subspan(piece.size());
    if (written_ - started_ >= kWindow) write_out();
  }
}

// Starts writing the window that is full, then waits for the one before it and drops its pages. An
// error that the kernel reports here it does not report again at fsync.
void HashedFile::write_out() {
  const auto sync = [&](std::uint64_t from, std::uint64_t to, unsigned flags) {
    if (from == to) return;  // a length of 0 would mean: to the end
    if (::sync_file_range(fd_.get(), static_cast<off_t>(from), static_cast<off_t>(to - from),
                          flags) == 0) {
      return;
    }
    // File systems without it write when they like; fsync still comes.
    if (errno != ENOSYS && errno != EINVAL && errno != ESPIPE && errno != EOPNOTSUPP) {
      fail_io(path_, fmt::format("write bytes {} to {} to disk", from, to), errno);
    }
  };
  sync(started_, written_, SYNC_FILE_RANGE_WRITE);
  sync(dropped_, started_,
       SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
  if (started_ > dropped_) {  // only advice: no failure to speak of
    (void)::posix_fadvise(fd_.get(), static_cast<off_t>(dropped_),
                          static_cast<off_t>(started_ - dropped_), POSIX_FADV_DONTNEED);
  }
  dropped_ = started_;
  started_ = written_;
}

void HashedFile::close() {
  check(static_cast<bool>(fd_), "{} was closed twice", path_);
  if (::fsync(fd_.get()) != 0) fail_io(path_, "force the file to disk", errno);
  if (::close(fd_.release()) != 0) fail_io(path_, "close the file", errno);
}

}  // namespace ballast
