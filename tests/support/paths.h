#pragma once

#include <string>
#include <string_view>

namespace ballast::test {

// A file of the repository, and one of tests/golden. Compiled in one place: what depends on where
// the repository lies is not shared among checkouts by a compiler cache.
std::string source_path(std::string_view name);
std::string golden_path(std::string_view name);

}  // namespace ballast::test
