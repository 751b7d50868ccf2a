#pragma once

#include <string_view>

namespace ballast {

std::string_view version();  // "0.2.0"

// How this program was built. "": not known, as where the sources were no git checkout.
struct BuildInfo {
  std::string_view commit;    // 40 hexadecimal digits
  bool clean = false;         // the sources were those of the commit
  std::string_view compiler;  // "GNU 12.2.0"
  std::string_view flags;     // "-O3 -DNDEBUG"
  std::string_view target;    // "Linux x86_64"
};
BuildInfo build_info();

}  // namespace ballast
