#include "plan/program.h"

#include "core/error.h"
#include "core/to_size.h"

namespace ballast {

std::string_view name_of(Role r) {
  constexpr std::array<std::string_view, kRoles> kNames = {
      "weights",    "weight_slots", "adapter", "gradient", "optimizer", "checkpoint",
      "activation", "workspace",    "staging", "input",    "output"};
  return kNames[to_size(r)];
}

std::string_view name_of(Lane l) {
  constexpr std::array<std::string_view, kLaneCount> kNames = {"compute", "upload", "download",
                                                               "disk",    "host",   "network"};
  return kNames[to_size(l)];
}

void ProgramSet::fail_unknown(Buffer b) const {
  fail(ErrorCode::internal, "buffer {} is not one of the {} recorded", b.id, buffers.size());
}

int ProgramSet::program_index(std::string_view name) const {
  for (std::size_t i = 0; i < programs.size(); ++i) {
    if (programs[i].name == name) return static_cast<int>(i);
  }
  check(false, "no program is called {}", name);
  return -1;
}

}  // namespace ballast
