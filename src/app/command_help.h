#pragma once

#include <string>

namespace CLI {
class App;
}

namespace ballast {

// The help page of a command or of a part of one, made from what its options say of themselves. The
// text does not depend on the version of CLI11, whose own pages show defaults and limits in ways
// that change.
std::string command_help(const CLI::App& app);

}  // namespace ballast
