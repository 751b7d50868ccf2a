#include "io/leftovers.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"
#include "core/log.h"
#include "io/atomic_folder.h"

namespace ballast {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMark = "ballast-";
constexpr std::string_view kFileEnd = ".tmp", kFolderMiddle = ".tmp-";

// Of the part of a name that tells who made it: "ballast-<pid>-<anything>", or without the mark as
// earlier versions wrote it.
struct Owner {
  pid_t pid = 0;
  bool marked = false;
};

std::optional<Owner> parse_owner(std::string_view text) {
  Owner owner;
  owner.marked = text.starts_with(kMark);
  if (owner.marked) text.remove_prefix(kMark.size());
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, owner.pid);
  if (error != std::errc() || owner.pid <= 0 || end == last || *end != '-') return std::nullopt;
  return owner;
}

std::optional<Owner> owner_of_folder(std::string_view name) {
  const std::size_t middle = name.rfind(kFolderMiddle);
  if (middle == std::string_view::npos) return std::nullopt;
  return parse_owner(name.substr(middle + kFolderMiddle.size()));
}

std::optional<Owner> owner_of_file(std::string_view name) {
  if (!name.starts_with('.') || !name.ends_with(kFileEnd)) return std::nullopt;
  name.remove_suffix(kFileEnd.size());
  return parse_owner(name.substr(name.rfind('.') + 1));
}

// EPERM: it lives, but is not ours. Our own id: it is not this process that writes there.
bool is_gone(pid_t pid) { return pid == ::getpid() || (::kill(pid, 0) != 0 && errno != EPERM); }

// The same file or folder is still at that name.
bool is_at(const FileDescriptor& fd, const std::string& path) {
  struct stat open {};
  struct stat named {};
  return ::fstat(fd.get(), &open) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

std::uint64_t bytes_below(const fs::path& path, bool folder) {
  std::error_code error;
  if (!folder) {
    const std::uintmax_t size = fs::file_size(path, error);
    return error ? 0 : size;
  }
  std::uint64_t bytes = 0;
  for (fs::recursive_directory_iterator at(path, error), end; !error && at != end;
       at.increment(error)) {
    std::error_code unknown;
    if (!fs::is_regular_file(at->symlink_status(unknown))) continue;
    const std::uintmax_t size = at->file_size(unknown);
    if (!unknown) bytes += size;
  }
  return bytes;
}

// Removes it if it is abandoned; returns its bytes. by_id: where no lock tells, the process id
// does.
std::optional<std::uint64_t> remove_abandoned(const fs::path& path, bool folder, Owner owner,
                                              bool by_id) {
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd) return std::nullopt;
  // Shared, since NFS has exclusive locks only of files that are open for writing. It has none of
  // folders: there an exclusive one fails for its owner, and so it does here.
  const bool locked = ::flock(fd.get(), (folder ? LOCK_EX : LOCK_SH) | LOCK_NB) == 0;
  if (!locked && errno == EWOULDBLOCK) return std::nullopt;
  if (!(locked && owner.marked) && !(by_id && is_gone(owner.pid))) return std::nullopt;
  if (!is_at(fd, path.string())) return std::nullopt;  // it has got its name meanwhile
  const std::uint64_t bytes = bytes_below(path, folder);
  std::error_code error;
  fs::remove_all(path, error);
  if (error) return std::nullopt;
  return bytes;
}

int remove_all_leftovers(const std::string& folder, bool of_a_run) {
  struct Leftover {
    fs::path path;
    bool folder = false;
    std::optional<Owner> owner;
  };
  std::vector<Leftover> found;  // listed first: removing while listing may skip entries
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.find(kFileEnd) == std::string::npos && !name.ends_with(kDeletingEnd)) continue;
    std::error_code unknown;
    const fs::file_status status = at->symlink_status(unknown);
    const bool is_folder = fs::is_directory(status);
    if (!is_folder && !fs::is_regular_file(status)) continue;
    const auto owner = is_folder ? owner_of_folder(name) : owner_of_file(name);
    const bool deleting = is_folder && name.ends_with(kDeletingEnd);
    if (owner ? owner->marked || of_a_run : of_a_run && deleting) {
      found.push_back({at->path(), is_folder, owner});
    }
  }
  int removed = 0;
  std::uint64_t bytes = 0;
  for (const Leftover& one : found) {
    if (one.owner) {
      const auto freed = remove_abandoned(one.path, one.folder, *one.owner, of_a_run);
      if (!freed) continue;
      bytes += *freed;
    } else {
      bytes += bytes_below(one.path, true);
      fs::remove_all(one.path, error);
      if (error) continue;
    }
    ++removed;
  }
  if (removed > 0) {
    log::info("{}: removed {} temporary {} ({}) that a killed process left", printable(folder, 400),
              removed, removed == 1 ? "file or folder" : "files and folders", Bytes{bytes});
  }
  return removed;
}

}  // namespace

std::string temporary_file_name(std::string_view name) {
  static std::atomic<unsigned> counter{0};
  // 100: the whole name stays below the 255 bytes that file systems allow.
  return fmt::format(".{}.{}{}-{}{}", name.substr(0, 100), kMark, ::getpid(), counter++, kFileEnd);
}

std::string temporary_folder_name(std::string_view name) {
  std::random_device random;
  return fmt::format("{}{}{}{}-{:08x}", name, kFolderMiddle, kMark, ::getpid(), random());
}

bool lock_temporary(const FileDescriptor& fd, const std::string& path) {
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
  struct stat there {};
  return ::lstat(path.c_str(), &there) == 0 || errno != ENOENT;
}

void remove_leftovers_once(const std::string& folder) {
  static std::mutex mutex;
  static std::set<std::string> cleaned;
  {
    const std::lock_guard lock(mutex);
    if (!cleaned.insert(folder).second) return;
  }
  remove_all_leftovers(folder, false);
}

int clean_leftovers(const std::string& folder) { return remove_all_leftovers(folder, true); }

}  // namespace ballast
