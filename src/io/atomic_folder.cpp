#include "io/atomic_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <random>
#include <vector>

#include "core/error.h"
#include "memory/disk_file.h"
#include "memory/file_descriptor.h"

namespace ballast {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporary = ".tmp-";
constexpr std::string_view kDeleting = ".deleting";

std::string parent_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

// The process in "<pid>-<anything>".
std::optional<pid_t> pid_before_dash(std::string_view text) {
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), pid);
  if (error != std::errc() || pid <= 0 || end == text.data() + text.size() || *end != '-') {
    return std::nullopt;
  }
  return pid;
}

// Of a folder `<name>.tmp-<pid>-<random>`.
std::optional<pid_t> owner_of_folder(std::string_view name) {
  const std::size_t mark = name.rfind(kTemporary);
  if (mark == std::string_view::npos) return std::nullopt;
  return pid_before_dash(name.substr(mark + kTemporary.size()));
}

// Of a file `.<name>.<pid>-<n>.tmp`, as io/atomic_file.h makes them.
std::optional<pid_t> owner_of_file(std::string_view name) {
  constexpr std::string_view kEnd = ".tmp";
  if (!name.starts_with('.') || !name.ends_with(kEnd)) return std::nullopt;
  name.remove_suffix(kEnd.size());
  return pid_before_dash(name.substr(name.rfind('.') + 1));
}

// EPERM: it lives, but is not ours.
bool lives(pid_t pid) { return ::kill(pid, 0) == 0 || errno == EPERM; }

void remove_tree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail_io(path, "remove the folder", error.value());
}

}  // namespace

AtomicFolder::AtomicFolder(std::string path) : path_(std::move(path)) {
  std::random_device random;
  do {
    temporary_ = fmt::format("{}{}{}-{:08x}", path_, kTemporary, ::getpid(), random());
    if (::mkdir(temporary_.c_str(), 0777) == 0) return;
  } while (errno == EEXIST);
  const int error = errno;
  temporary_.clear();
  fail_io(path_, "create a folder beside it", error);
}

AtomicFolder::~AtomicFolder() {
  if (temporary_.empty()) return;
  std::error_code ignored;  // what stays is removed by the next run: clean_leftovers()
  fs::remove_all(temporary_, ignored);
}

std::string AtomicFolder::file(std::string_view name) const {
  check(!temporary_.empty(), "{} was written after commit", path_);
  return fmt::format("{}/{}", temporary_, name);
}

void AtomicFolder::commit() {
  check(!temporary_.empty(), "{} was committed twice", path_);
  sync_folder(temporary_);
  const auto rename = [&](unsigned flags) {
    return ::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), flags) == 0;
  };
  const auto fail_rename = [&] {
    fail_io(path_, fmt::format("rename {} to it", temporary_), errno);
  };
  struct stat there {};
  if (::lstat(path_.c_str(), &there) != 0) {
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail_rename();
    temporary_.clear();
  } else if (!S_ISDIR(there.st_mode)) {
    fail_io(path_, "put a folder in its place", ENOTDIR);
  } else if (rename(RENAME_EXCHANGE)) {
    sync_folder(parent_of(path_));
    remove_tree(std::exchange(temporary_, {}));  // the old one, under the temporary name
  } else {
    if (errno != EINVAL && errno != ENOSYS) fail_rename();
    delete_folder(path_);
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail_rename();
    temporary_.clear();
  }
  sync_folder(parent_of(path_));
}

void delete_folder(const std::string& path) {
  const std::string doomed = path + std::string(kDeleting);
  remove_tree(doomed);  // an earlier process may have stopped half way
  if (std::rename(path.c_str(), doomed.c_str()) != 0) {
    fail_io(path, fmt::format("rename it to {}", doomed), errno);
  }
  sync_folder(parent_of(path));
  remove_tree(doomed);
}

int clean_leftovers(const std::string& parent) {
  std::vector<fs::path> doomed;  // listed first: removing while listing may skip entries
  std::error_code error;
  for (fs::directory_iterator it(parent, error), end; !error && it != end; it.increment(error)) {
    std::error_code unknown;
    const fs::file_status status = it->symlink_status(unknown);
    const bool folder = fs::is_directory(status);
    if (!folder && !fs::is_regular_file(status)) continue;
    const std::string name = it->path().filename().string();
    const auto pid = folder ? owner_of_folder(name) : owner_of_file(name);
    if ((folder && name.ends_with(kDeleting)) || (pid && (*pid == ::getpid() || !lives(*pid)))) {
      doomed.push_back(it->path());
    }
  }
  int removed = 0;
  for (const fs::path& path : doomed) {
    fs::remove_all(path, error);
    if (!error) ++removed;
  }
  return removed;
}

void create_folders(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (!error && !fs::is_directory(path, error))
    error = std::make_error_code(std::errc::not_a_directory);
  if (error) fail_io(path, "create the folder", error.value());
}

void sync_folder(const std::string& path) {
  const FileDescriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) fail_io(path, "open the folder", errno);
  // EINVAL: the file system has no such notion for folders.
  if (::fsync(folder.get()) != 0 && errno != EINVAL) {
    fail_io(path, "force the folder to disk", errno);
  }
}

}  // namespace ballast
