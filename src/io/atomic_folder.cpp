#include "io/atomic_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "core/error.h"
#include "io/leftovers.h"
#include "memory/disk_file.h"

namespace ballast {
namespace {

namespace fs = std::filesystem;

void remove_tree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail_io(path, "remove the folder", error.value());
}

}  // namespace

AtomicFolder::AtomicFolder(std::string path) : path_(std::move(path)) {
  remove_leftovers_once(folder_of_file(path_));
  for (;;) {
    temporary_ = temporary_folder_name(path_);
    if (::mkdir(temporary_.c_str(), 0777) != 0) {
      if (errno == EEXIST) continue;
      break;
    }
    lock_ = FileDescriptor(::open(temporary_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!lock_ && errno != ENOENT) break;
    if (lock_ && lock_temporary(lock_, temporary_)) return;
  }
  const int error = errno;
  if (!lock_) ::rmdir(temporary_.c_str());
  temporary_.clear();
  fail_io(path_, "create a folder beside it", error);
}

AtomicFolder::~AtomicFolder() {
  if (temporary_.empty()) return;
  std::error_code ignored;  // what stays is removed later (io/leftovers.h)
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
    sync_folder(folder_of_file(path_));
    remove_tree(std::exchange(temporary_, {}));  // the old one, under the temporary name
  } else {
    if (errno != EINVAL && errno != ENOSYS) fail_rename();
    delete_folder(path_);
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail_rename();
    temporary_.clear();
  }
  sync_folder(folder_of_file(path_));
}

void delete_folder(const std::string& path) {
  const std::string doomed = path + std::string(kDeletingEnd);
  remove_tree(doomed);  // an earlier process may have stopped half way
  if (std::rename(path.c_str(), doomed.c_str()) != 0) {
    fail_io(path, fmt::format("rename it to {}", doomed), errno);
  }
  sync_folder(folder_of_file(path));
  remove_tree(doomed);
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
