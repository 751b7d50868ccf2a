#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "memory/disk_speed.h"
#include "memory/machine.h"

namespace ballast {

// One thing about this machine that a run depends on.
struct MachineCheck {
  enum class State : std::uint8_t { good, note, warning };
  std::string name;  // "disk speed"
  State state = State::good;
  std::string finding;  // "read 2.10 GB/s, direct"
  std::string advice;   // what to do; empty when good
};

// disk: of `folder`; nullopt: was not measured. root stands for "/".
std::vector<MachineCheck> check_machine(const Machine& machine, const std::filesystem::path& folder,
                                        const std::optional<DiskSpeed>& disk,
                                        const std::filesystem::path& root = "/");

std::string_view name_of(MachineCheck::State s);

}  // namespace ballast
