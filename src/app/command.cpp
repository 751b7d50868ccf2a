#include "app/command.h"

#include <algorithm>

namespace ballast {
namespace {

// Inside a function: registrations run before main, in any order of files.
std::vector<CommandInfo>& table() {
  static std::vector<CommandInfo> commands;
  return commands;
}

}  // namespace

std::span<const CommandInfo> commands() { return table(); }

void register_command(const CommandInfo& info) {
  auto& all = table();
  const auto at =
      std::find_if(all.begin(), all.end(), [&](const auto& c) { return c.name > info.name; });
  all.insert(at, info);
}

}  // namespace ballast
