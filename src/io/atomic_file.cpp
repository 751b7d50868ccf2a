#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "core/error.h"
#include "core/to_size.h"
#include "io/leftovers.h"
#include "memory/disk_file.h"
#include "memory/regular_file.h"

namespace ballast {
namespace {

// Bytes that go to the disk together while more are written. The kernel counts what waits in the
// page cache as memory of the control group: a checkpoint that waits for a busy disk must not be
// what ends a run that keeps to its limit.
constexpr std::uint64_t kMinWriteback = 128 << 10, kMaxWriteback = 1 << 20;

// More of large files: who writes those has memory for it.
std::uint64_t writeback(std::uint64_t written) {
  return std::clamp(written / 64, kMinWriteback, kMaxWriteback);
}

// The file to replace: what the symbolic links at `path` lead to, there or not. Renaming over
// anything but a regular file would destroy it (as root even /dev/null).
std::string replaceable(const std::string& path) {
  constexpr int kMaxLinks = 40;  // as the kernel follows them
  std::string at = path;
  for (int links = 0; links <= kMaxLinks; ++links) {
    struct stat s {};
    if (::lstat(at.c_str(), &s) != 0) return at;  // absent, or creating the file will say why not
    if (S_ISREG(s.st_mode)) return at;
    if (S_ISDIR(s.st_mode)) fail_io(path, "write a file of that name", EISDIR);
    if (!S_ISLNK(s.st_mode)) {
      fail(ErrorCode::io,
           fmt::format("{} is {}: an output file would replace it", printable(path),
                       special_kind(s.st_mode)),
           {{"name a regular file", "or one that does not exist yet"}});
    }
    std::error_code error;
    const std::string to = std::filesystem::read_symlink(at, error).string();
    if (error) fail_io(path, "read the symbolic link", error.value());
    at = to.starts_with('/') ? to : fmt::format("{}/{}", folder_of_file(at), to);
  }
  fail_io(path, "follow its symbolic links", ELOOP);
}

}  // namespace

std::string folder_of_file(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)), target_(replaceable(path_)) {
  const std::string_view name = std::string_view(target_).substr(target_.rfind('/') + 1);
  folder_ = folder_of_file(target_);
  if (name.empty()) fail_io(path_, "write a file without a name", EISDIR);
  remove_leftovers_once(folder_);
  do {  // an earlier process with our id may have left a file of that name
    temporary_ = fmt::format("{}/{}", folder_, temporary_file_name(name));
    fd_ = FileDescriptor(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  } while (fd_ ? !lock_temporary(fd_, temporary_) : errno == EEXIST);
  if (!fd_) {
    const int error = errno;
    temporary_.clear();
    fail_io(path_, "create a file beside it", error);
  }
}

AtomicFile::AtomicFile(AtomicFile&& o) noexcept
    : path_(std::move(o.path_)),
      target_(std::move(o.target_)),
      folder_(std::move(o.folder_)),
      temporary_(std::exchange(o.temporary_, {})),
      fd_(std::move(o.fd_)),
      written_(o.written_),
      sent_(o.sent_),
      arrived_(o.arrived_) {}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  check(static_cast<bool>(fd_), "{} was written after commit", path_);
  while (!bytes.empty()) {
    const ssize_t put =
        ::write(fd_.get(), bytes.data(), std::min<std::size_t>(bytes.size(), kMinWriteback));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      fail_io(path_, fmt::format("write {} bytes at offset {}", bytes.size(), written_), errno);
    }
    bytes = bytes.subspan(to_size(put));
    written_ += static_cast<std::uint64_t>(put);
    if (written_ - sent_ >= writeback(written_)) begin_writeback();
  }
}

// Without effect where the file system has no disk; errors are those of the fsync at the end.
void AtomicFile::begin_writeback() {
  const auto range = [](std::uint64_t from, std::uint64_t to) {
    return std::pair(static_cast<off64_t>(from), static_cast<off64_t>(to - from));
  };
  const auto [begin, count] = range(sent_, written_);
  ::sync_file_range(fd_.get(), begin, count, SYNC_FILE_RANGE_WRITE);
  const auto [before, waiting] = range(arrived_, sent_);
  if (waiting > 0) {
    ::sync_file_range(
        fd_.get(), before, waiting,
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    ::posix_fadvise(fd_.get(), before, waiting, POSIX_FADV_DONTNEED);
  }
  arrived_ = std::exchange(sent_, written_);
}

void AtomicFile::set_name(std::string_view name) {
  check(static_cast<bool>(fd_) && name.find('/') == std::string_view::npos, "{} cannot be named {}",
        path_, name);
  path_ = fmt::format("{}/{}", folder_of_file(path_), name);
  target_ = replaceable(path_);
  folder_ = folder_of_file(target_);
}

void AtomicFile::commit(Durability durability) {
  check(static_cast<bool>(fd_), "{} was committed twice", path_);
  const bool forced = durability == Durability::power_cut;
  if (forced && ::fsync(fd_.get()) != 0) fail_io(path_, "force the file to disk", errno);
  // A second descriptor keeps the lock until the file has its name.
  const FileDescriptor lock(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
  if (!lock) fail_io(path_, "keep the file locked", errno);
  if (::close(fd_.release()) != 0) fail_io(path_, "close the file", errno);
  // Links and special files that came since are not replaced either.
  if (replaceable(path_) != target_) {
    fail(ErrorCode::io, "{} was linked elsewhere while it was written", path_);
  }
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) {
    fail_io(path_, fmt::format("rename {} to it", temporary_), errno);
  }
  temporary_.clear();
  if (!forced) return;
  const FileDescriptor folder(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) fail_io(folder_, "open the folder", errno);
  // EINVAL: the file system has no such notion for folders.
  if (::fsync(folder.get()) != 0 && errno != EINVAL) {
    fail_io(folder_, "force the folder to disk", errno);
  }
}

void write_text_file(const std::string& path, std::string_view text, Durability durability) {
  AtomicFile file(path);
  file.write(text);
  file.commit(durability);
}

void check_can_write(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  struct stat s {};
  if (::stat(folder.c_str(), &s) != 0 && errno == ENOENT) {
    fail(ErrorCode::io,
         fmt::format("{}: there is no folder {} to write it into", printable(path), folder),
         {{fmt::format("mkdir -p {}", folder), "makes it"}});
  }
  if (::lstat(path.c_str(), &s) != 0 && errno != ENOENT) fail_io(path, "write it", errno);
  const AtomicFile tried(path);  // and removed
}

}  // namespace ballast
