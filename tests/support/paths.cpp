#include "tests/support/paths.h"

namespace ballast::test {

std::string source_path(std::string_view name) {
  return BALLAST_SOURCE_DIR "/" + std::string(name);
}

std::string golden_path(std::string_view name) {
  return BALLAST_GOLDEN_DIR "/" + std::string(name);
}

}  // namespace ballast::test
