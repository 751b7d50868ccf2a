// A tar archive. Members that are listed lie in it, under relative names that do not lead upwards.

#include <set>
#include <string>

#include "fuzz.h"
#include "io/tar_archive.h"
#include "io/utf8.h"

namespace ballast::fuzz {

void one_input(Input input) {
  static MemoryFile file("media.tar");
  file.write(input.rest());
  accepts([&] {
    const DiskFile archive = DiskFile::open(file.path(), DiskMode::buffered);
    const TarListing listing = list_tar(archive);
    std::set<std::string> names;
    for (const TarMember& m : listing.members) {
      require(m.offset <= archive.size() && m.bytes <= archive.size() - m.offset);
      require(!m.name.empty() && m.name.front() != '/' && !first_invalid_utf8(m.name));
      require(("/" + m.name + "/").find("/../") == std::string::npos);
      require(names.insert(m.name).second);
    }
  });
}

}  // namespace ballast::fuzz
