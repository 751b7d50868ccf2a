#include "core/version.h"

namespace ballast {

std::string_view version() { return BALLAST_VERSION; }

}  // namespace ballast
