#pragma once

#include <span>
#include <string>

namespace ballast {

// From here on this process, and what it starts, gains no rights by programs that have more
// (PR_SET_NO_NEW_PRIVS) and, where the kernel has Landlock, opens nothing but what is below
// `paths`, and that for reading alone. What is open already stays so. Paths that are not there are
// left out. False: this kernel has no Landlock, or does not allow it here.
bool restrict_to_reading(std::span<const std::string> paths);

}  // namespace ballast
