#include "core/version.h"

#include "core/build_info.h"  // made by cmake/build_info.cmake in each build

namespace ballast {

std::string_view version() { return BALLAST_VERSION; }

BuildInfo build_info() {
  return {.commit = BALLAST_BUILD_COMMIT,
          .clean = BALLAST_BUILD_CLEAN,
          .compiler = BALLAST_BUILD_COMPILER,
          .flags = BALLAST_BUILD_FLAGS,
          .target = BALLAST_BUILD_TARGET};
}

}  // namespace ballast
