#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "memory/disk_file.h"

namespace ballast {

// A regular file inside a tar archive: data of `bytes` bytes at `offset` of the archive.
struct TarMember {
  std::string name;
  std::uint64_t offset = 0, bytes = 0;
};

struct TarListing {
  std::vector<TarMember> members;  // in order; each name once
  // What is no file that can be read by its name and offset: its name, and why it is left out.
  std::vector<std::pair<std::string, std::string>> left_out;
};

// Lists an archive by its headers, without reading data: v7, ustar, GNU (long names, sizes in base
// 256) and pax (path, size). Folders are passed over. Of members with one name the last counts, as
// tar would unpack it. Links, devices, sparse files and names that are absolute, empty, not UTF-8
// or lead upwards (..) are left out with a reason.
//
// Archives come from strangers. A header with a wrong checksum, a size that is no number, negative
// or beyond the end of the file, or an end in the middle of a header is an Error of
// ErrorCode::input that names the file and the offset: what follows could not be found.
TarListing list_tar(const DiskFile& file);

}  // namespace ballast
