#include "report/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "core/to_size.h"
#include "memory/disk_file.h"

namespace ballast {

AppendFile::AppendFile(std::string path, Open how) : path_(std::move(path)) {
  const int flags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | (how == Open::fresh ? O_EXCL : 0);
  fd_ = FileDescriptor(::open(path_.c_str(), flags, 0666));
  if (!fd_) fail_io(path_, "open it for writing", errno);
}

std::uint64_t AppendFile::size() const {
  struct stat found;
  if (::fstat(fd_.get(), &found) != 0) fail_io(path_, "find its size", errno);
  return static_cast<std::uint64_t>(found.st_size);
}

void AppendFile::append(std::string_view record) {
  const std::uint64_t before = size();
  std::size_t done = 0;
  while (done < record.size()) {
    const ssize_t wrote = ::write(fd_.get(), record.data() + done, record.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      const int error = wrote < 0 ? errno : ENOSPC;
      [[maybe_unused]] const int ignored = ::ftruncate(fd_.get(), static_cast<off_t>(before));
      fail_io(path_, "append a record", error);
    }
    done += to_size(wrote);
  }
}

void AppendFile::truncate(std::uint64_t size) {
  if (::ftruncate(fd_.get(), static_cast<off_t>(size)) != 0) fail_io(path_, "shorten it", errno);
}

void AppendFile::sync() {
  if (::fdatasync(fd_.get()) != 0) fail_io(path_, "force it to disk", errno);
}

void make_folders(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail_io(path, "make this folder", error.value());
}

}  // namespace ballast
