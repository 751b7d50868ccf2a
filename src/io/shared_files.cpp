#include "io/shared_files.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <vector>

#include "core/error.h"
#include "io/atomic_file.h"
#include "io/atomic_folder.h"
#include "memory/disk_file.h"

namespace ballast {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxDepth = 4;

void copy_bytes(const std::string& from, const std::string& to) {
  const DiskFile source = DiskFile::open(from, DiskMode::buffered);
  AtomicFile copy(to);
  std::vector<std::byte> piece(std::min<std::uint64_t>(source.size(), 256 << 10));
  for (std::uint64_t at = 0; at < source.size();) {
    const auto part =
        std::span(piece).first(std::min<std::uint64_t>(piece.size(), source.size() - at));
    source.read(at, part);
    copy.write(part);
    at += part.size();
  }
  copy.commit();
}

void share_below(const std::string& from, const std::string& to, const SharingLimits& limits,
                 int depth) {
  if (depth > kMaxDepth) {
    fail(ErrorCode::io, "{}: folders are nested deeper than {}", from, kMaxDepth);
  }
  create_folders(to);
  std::error_code error;
  fs::directory_iterator it(from, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with('.')) continue;
    std::error_code dangling;
    const fs::file_status status = it->status(dangling);
    if (fs::is_directory(status)) {
      share_below(it->path().string(), to + "/" + name, limits, depth + 1);
    } else if (fs::is_regular_file(status)) {
      share_file(it->path().string(), to + "/" + name, limits);
    }
  }
  if (error) fail_io(from, "list the folder", error.value());
  sync_folder(to);
}

}  // namespace

void share_file(const std::string& from, const std::string& to, const SharingLimits& limits) {
  std::error_code error;
  const fs::path real = fs::canonical(from, error);  // of the Hugging Face cache: the blob itself
  if (error) fail_io(from, "find the file", error.value());
  const std::uintmax_t size = fs::file_size(real, error);
  if (error) fail_io(from, "find its size", error.value());
  if (size <= limits.copied.count) return copy_bytes(real.string(), to);
  if (::link(real.c_str(), to.c_str()) == 0) return;
  if (size <= limits.copied_elsewhere.count) return copy_bytes(real.string(), to);
  if (::symlink(real.c_str(), to.c_str()) != 0)
    fail_io(to, fmt::format("link {} to it", from), errno);
}

void share_folder(const std::string& from, const std::string& to, const SharingLimits& limits) {
  share_below(from, to, limits, 1);
}

}  // namespace ballast
