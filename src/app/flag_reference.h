#pragma once

#include <string>

namespace ballast {

// docs/flags.md: the help pages of all commands and the options of all trainers. A test compares
// the committed page with this.
std::string flag_reference();

}  // namespace ballast
