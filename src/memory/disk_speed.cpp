#include "memory/disk_speed.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "core/error.h"
#include "core/thread_pool.h"
#include "memory/arena.h"
#include "memory/disk_file.h"
#include "memory/file_descriptor.h"

namespace ballast {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kPiece = 4 << 20;
constexpr std::uint64_t kTrial = 64 << 20;
constexpr double kReadSeconds = 0.5, kWriteSeconds = 1.0;

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

double rate(std::uint64_t bytes, double seconds) {
  return static_cast<double>(bytes) / std::max(seconds, 1e-9);
}

// Looks at 4096 names at most.
std::optional<fs::path> large_file(const fs::path& folder) {
  std::optional<fs::path> found;
  std::uint64_t largest = kTrial - 1;
  std::error_code error;
  fs::directory_iterator at(folder, error), end;
  for (int seen = 0; !error && at != end && seen < 4096; at.increment(error), ++seen) {
    std::error_code unknown;
    if (!at->is_regular_file(unknown)) continue;
    const std::uint64_t size = at->file_size(unknown);
    if (unknown || size <= largest) continue;
    largest = size;
    found = at->path();
  }
  return found;
}

void read_trial(const std::string& path, const Arena& buffer, DiskSpeed& out) {
  const DiskFile file = DiskFile::open(path, DiskMode::automatic);
  out.direct = file.mode() == DiskMode::direct;
  const Stopwatch watch;
  std::uint64_t at = 0;
  while (at + kPiece <= file.size() && watch.seconds() < kReadSeconds) {
    at += file.read_aligned(at, {buffer.base(), kPiece}, PageCache::drop);
  }
  out.bytes = {at};
  out.read = rate(at, watch.seconds());
}

// Removes the file it stands for.
struct Removed {
  std::string path;
  ~Removed() { ::unlink(path.c_str()); }
};

void write_and_read_trial(const fs::path& folder, const Arena& buffer, DiskSpeed& out) {
  std::string path = (folder / ".ballast_disk_trial_XXXXXX").string();
  const FileDescriptor fd(::mkostemp(path.data(), O_CLOEXEC));
  if (!fd) fail_io(folder.string(), "write a trial file there", errno);
  const Removed removed{path};
  // No two blocks alike and none of zeros: a file system that compresses would flatter itself.
  std::uint64_t random = 0x9E3779B97F4A7C15;
  const Stopwatch watch;
  std::uint64_t at = 0;
  while (at < kTrial && watch.seconds() < kWriteSeconds) {
    for (std::uint64_t i = 0; i < kPiece; i += sizeof random) {
      random = random * 6364136223846793005ull + 1442695040888963407ull;
      std::memcpy(buffer.base() + i, &random, sizeof random);
    }
    for (std::uint64_t done = 0; done < kPiece;) {
      const ssize_t wrote = ::write(fd.get(), buffer.base() + done, kPiece - done);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0) fail_io(path, "write the trial file", wrote < 0 ? errno : ENOSPC);
      done += static_cast<std::uint64_t>(wrote);
    }
    at += kPiece;
    if (::fdatasync(fd.get()) != 0) fail_io(path, "force the trial file to disk", errno);
  }
  out.write = rate(at, watch.seconds());
  read_trial(path, buffer, out);
}

}  // namespace

DiskSpeed measure_streaming(const std::string& path, int readers, double seconds) {
  constexpr std::uint64_t kRequest = 2 << 20;
  const DiskFile file = DiskFile::open(path, DiskMode::automatic);
  const Arena buffer({kRequest * static_cast<std::uint64_t>(readers)}, "buffers of the disk trial");
  ThreadPool pool(readers);
  DiskSpeed out;
  out.direct = file.mode() == DiskMode::direct;
  std::atomic<std::uint64_t> read = 0;
  const Stopwatch watch;
  pool.parallel(static_cast<std::int64_t>(file.size() / kRequest), [&](std::int64_t i, int worker) {
    if (watch.seconds() >= seconds) return;
    std::byte* to = buffer.base() + static_cast<std::uint64_t>(worker) * kRequest;
    read += file.read_aligned(static_cast<std::uint64_t>(i) * kRequest, {to, kRequest},
                              PageCache::drop);
  });
  out.bytes = {read};
  out.read = rate(read, watch.seconds());
  return out;
}

DiskSpeed measure_disk(const fs::path& folder, DiskTrial trial) {
  DiskSpeed out;
  try {
    const Arena buffer({kPiece}, "buffer of the disk trial");
    const auto file = trial == DiskTrial::writes ? std::nullopt : large_file(folder);
    if (file) {
      read_trial(file->string(), buffer, out);
    } else {
      write_and_read_trial(folder, buffer, out);
    }
  } catch (const Error& e) {  // a folder that cannot be read or written is an answer here
    out = {};
    out.problem = e.what();
  }
  return out;
}

}  // namespace ballast
