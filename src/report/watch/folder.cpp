#include "report/watch/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "core/to_size.h"
#include "memory/disk_file.h"

namespace ballast {
namespace {

constexpr std::size_t kMaxNames = 100'000;

// Until `take` says false.
template <class Take>
void list_names(int folder, Take&& take) {
  // A descriptor of its own: two listings share a position otherwise.
  const int fd = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  struct Close {
    void operator()(DIR* d) const { ::closedir(d); }
  };
  const std::unique_ptr<DIR, Close> listing(::fdopendir(fd));
  if (!listing) {
    ::close(fd);
    return;
  }
  while (const dirent* entry = ::readdir(listing.get())) {
    const std::string_view name = entry->d_name;
    if (!name.starts_with('.') && !take(name)) return;
  }
}

}  // namespace

WatchedFolder WatchedFolder::open(const std::string& path) {
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) fail_io(path, "open this folder", errno);
  return WatchedFolder(std::move(fd));
}

std::vector<std::string> WatchedFolder::names() const {
  std::vector<std::string> all;
  list_names(fd_.get(), [&](std::string_view name) {
    all.emplace_back(name);
    return all.size() < kMaxNames;
  });
  std::ranges::sort(all);
  return all;
}

bool WatchedFolder::has(std::string_view name) const {
  bool found = false;
  list_names(fd_.get(), [&](std::string_view n) {
    found = n == name;
    return !found;
  });
  return found;
}

std::optional<WatchedFolder> WatchedFolder::folder(std::string_view name) const {
  if (!has(name)) return std::nullopt;
  FileDescriptor fd(::openat(fd_.get(), std::string(name).c_str(),
                             O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) return std::nullopt;
  return WatchedFolder(std::move(fd));
}

FileDescriptor WatchedFolder::file(std::string_view name) const {
  if (!has(name)) return {};
  // O_NONBLOCK: a FIFO is not waited for.
  FileDescriptor fd(::openat(fd_.get(), std::string(name).c_str(),
                             O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  struct stat s {};
  if (!fd || ::fstat(fd.get(), &s) != 0 || !S_ISREG(s.st_mode)) return {};
  return fd;
}

std::optional<FileFacts> facts_of(const FileDescriptor& file) {
  struct stat s {};
  if (!file || ::fstat(file.get(), &s) != 0) return std::nullopt;
  return FileFacts{.device = s.st_dev,
                   .inode = s.st_ino,
                   .size = static_cast<std::uint64_t>(s.st_size),
                   .changed = static_cast<double>(s.st_mtim.tv_sec) +
                              1e-9 * static_cast<double>(s.st_mtim.tv_nsec)};
}

std::string read_at(const FileDescriptor& file, std::uint64_t offset, std::size_t bytes) {
  std::string text(bytes, '\0');
  std::size_t size = 0;
  while (size < bytes) {
    const ssize_t got =
        ::pread(file.get(), text.data() + size, bytes - size, static_cast<off_t>(offset + size));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    size += to_size(got);
  }
  text.resize(size);
  return text;
}

}  // namespace ballast
