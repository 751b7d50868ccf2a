#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/bytes.h"

namespace ballast {

// How fast the disk behind a folder is, by a short trial.
struct DiskSpeed {
  double read = 0;              // bytes per second, sequential
  std::optional<double> write;  // forced to disk; nullopt: the trial read a file that was there
  bool direct = false;          // past the page cache; false: the number may be the cache's
  Bytes bytes;                  // read
  std::string problem;          // why nothing was measured; then the rest is zero
};

enum class DiskTrial {
  as_found,  // of a large file that is there, or else of one of its own
  writes,    // always one of its own: what is written counts
};

// Reads, for at most half a second, the largest file of the folder from 64 MiB on; where there is
// none, writes a file of at most 1 GiB, for at most a second or up to 64 MiB, reads it and removes
// it. With DiskTrial::writes at most 8 GiB and four seconds, read for two. Reads and writes as the
// disk lane does (plan/runner.h), with as many requests at once. Keeps 8 MiB of memory and never
// fails.
DiskSpeed measure_disk(const std::filesystem::path& folder, DiskTrial trial = DiskTrial::as_found);

// What streaming may hope for: reads a file as the disk lane reads it, so many requests of
// kDiskRequest at once, for at most so many seconds. Throws what DiskFile throws.
DiskSpeed measure_streaming(const std::string& path, int readers, double seconds);

}  // namespace ballast
