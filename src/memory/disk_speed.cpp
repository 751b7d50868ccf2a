#include "memory/disk_speed.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <numeric>

#include "core/error.h"
#include "core/stopwatch.h"
#include "core/thread_pool.h"
#include "memory/arena.h"
#include "memory/disk_file.h"
#include "memory/file_descriptor.h"

namespace ballast {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMinTrial = 64 << 20;

// Of a trial. A small file may lie in some cache on the way, so one that rates come from is large
// where there is room.
struct Extents {
  std::uint64_t most;  // bytes
  double write_seconds, read_seconds;
};
Extents extents_of(DiskTrial trial, const fs::path& folder) {
  std::error_code unknown;
  const fs::space_info space = fs::space(folder, unknown);
  const std::uint64_t room = std::max<std::uint64_t>(unknown ? 0 : space.available / 8, kMinTrial);
  if (trial == DiskTrial::as_found) return {std::min<std::uint64_t>(room, 1ull << 30), 1.0, 0.5};
  return {std::min<std::uint64_t>(room, 8ull << 30), 4.0, 2.0};
}

// Of a number of things in a row, the i-th to be visited, each once and neighbours far apart.
std::uint64_t spread(std::uint64_t i, std::uint64_t count) {
  auto stride = static_cast<std::uint64_t>(static_cast<double>(count) * 0.618);
  while (std::gcd(stride, count) != 1) ++stride;
  return i * stride % count;
}

double rate(std::uint64_t bytes, double seconds) {
  return static_cast<double>(bytes) / std::max(seconds, 1e-9);
}

// Looks at 4096 names at most.
std::optional<fs::path> large_file(const fs::path& folder) {
  std::optional<fs::path> found;
  std::uint64_t largest = kMinTrial - 1;
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

// Removes the file it stands for.
struct Removed {
  std::string path;
  ~Removed() { ::unlink(path.c_str()); }
};

// Random bytes: a file system that compresses would flatter itself.
void fill_random(const Arena& buffer) {
  std::uint64_t random = 0x9E3779B97F4A7C15;
  for (std::uint64_t i = 0; i < buffer.size().count; i += sizeof random) {
    random = random * 6364136223846793005ull + 1442695040888963407ull;
    std::memcpy(buffer.base() + i, &random, sizeof random);
  }
}

bool write_piece(int fd, const std::byte* from, std::uint64_t at) {
  for (std::uint64_t done = 0; done < kDiskRequest;) {
    const ssize_t wrote =
        ::pwrite(fd, from + done, kDiskRequest - done, static_cast<off_t>(at + done));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    done += static_cast<std::uint64_t>(wrote);
  }
  return true;
}

// As optimizer state goes to disk (memory/scratch_file.h): past the page cache where that is
// possible, else forced out of it at the end.
void write_trial(const std::string& path, int fd, const Extents& extents, DiskSpeed& out) {
  const Arena buffer({kDiskRequest * kDiskReaders}, "buffers of the disk trial");
  fill_random(buffer);
  const FileDescriptor direct(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_DIRECT));
  const bool past_cache = direct && write_piece(direct.get(), buffer.base(), 0);
  ThreadPool pool(kDiskReaders);
  std::atomic<std::uint64_t> written = 0;
  std::atomic<int> problem = 0;
  const Stopwatch watch;
  pool.parallel(
      static_cast<std::int64_t>(extents.most / kDiskRequest), [&](std::int64_t i, int worker) {
        const bool enough = watch.seconds() >= extents.write_seconds && written >= kMinTrial;
        if (enough || problem != 0) return;
        const std::byte* from = buffer.base() + static_cast<std::uint64_t>(worker) * kDiskRequest;
        if (write_piece(past_cache ? direct.get() : fd, from,
                        static_cast<std::uint64_t>(i) * kDiskRequest)) {
          written += kDiskRequest;
        } else {
          problem = errno == 0 ? ENOSPC : errno;
        }
      });
  if (problem != 0) fail_io(path, "write the trial file", problem);
  if (::fdatasync(fd) != 0) fail_io(path, "force the trial file to disk", errno);
  out.write = rate(written, watch.seconds());
}

}  // namespace

DiskSpeed measure_streaming(const std::string& path, int readers, double seconds) {
  const DiskFile file = DiskFile::open(path, DiskMode::automatic);
  const Arena buffer({kDiskRequest * static_cast<std::uint64_t>(readers)},
                     "buffers of the disk trial");
  ThreadPool pool(readers);
  // Runs of 64 MiB from all over the file: its beginning, read again and again, may be faster than
  // the whole of it (decision 44).
  constexpr std::uint64_t kRun = (64 << 20) / kDiskRequest;
  const std::uint64_t requests = file.size() / kDiskRequest, runs = (requests + kRun - 1) / kRun;
  DiskSpeed out;
  out.direct = file.mode() == DiskMode::direct;
  std::atomic<std::uint64_t> read = 0;
  const Stopwatch watch;
  pool.parallel(static_cast<std::int64_t>(runs * kRun), [&](std::int64_t i, int worker) {
    const auto n = static_cast<std::uint64_t>(i);
    const std::uint64_t request = spread(n / kRun, runs) * kRun + n % kRun;
    if (request >= requests || watch.seconds() >= seconds) return;
    std::byte* to = buffer.base() + static_cast<std::uint64_t>(worker) * kDiskRequest;
    read += file.read_aligned(request * kDiskRequest, {to, kDiskRequest}, PageCache::drop);
  });
  out.bytes = {read};
  out.read = rate(read, watch.seconds());
  return out;
}

DiskSpeed measure_disk(const fs::path& folder, DiskTrial trial) {
  DiskSpeed out;
  try {
    const Extents extents = extents_of(trial, folder);
    if (const auto file = trial == DiskTrial::writes ? std::nullopt : large_file(folder)) {
      return measure_streaming(file->string(), kDiskReaders, extents.read_seconds);
    }
    std::string path = (folder / ".ballast_disk_trial_XXXXXX").string();
    const FileDescriptor fd(::mkostemp(path.data(), O_CLOEXEC));
    if (!fd) fail_io(folder.string(), "write a trial file there", errno);
    const Removed removed{path};
    DiskSpeed wrote;
    write_trial(path, fd.get(), extents, wrote);
    out = measure_streaming(path, kDiskReaders, extents.read_seconds);
    out.write = wrote.write;
  } catch (const Error& e) {  // a folder that cannot be read or written is an answer here
    out = {};
    out.problem = e.what();
  }
  return out;
}

}  // namespace ballast
