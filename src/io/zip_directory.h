#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "memory/disk_file.h"

namespace ballast {

// A file stored in a zip archive as it is: compressed and encrypted ones are refused.
struct ZipEntry {
  std::string name;
  std::uint64_t offset = 0;  // of its first byte, from the start of the archive
  std::uint64_t bytes = 0;
  std::uint32_t crc32 = 0;
};

// The directory at the end of an archive, in its own order. Every entry lies in front of the
// directory, none overlap, names are relative and different. What is wrong is ErrorCode::input with
// the rule pth.zip, pth.limit or, for entries that are not just stored, pth.compressed.
std::vector<ZipEntry> read_zip_directory(const DiskFile& file);

}  // namespace ballast
