#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "nn/machine_options.h"

namespace CLI {
class App;
}

namespace ballast {

// Declares the fields of MachineOptions with these names as options of a command.
void declare_machine(CLI::App& app, MachineOptions& to,
                     std::initializer_list<std::string_view> names);

// Lines of a help page for these fields: "  --gpu SIZE           GPU memory ...".
std::string machine_help(std::initializer_list<std::string_view> names);

}  // namespace ballast
