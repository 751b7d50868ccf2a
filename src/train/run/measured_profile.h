#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "plan/profile.h"

namespace ballast::train {

// What `ballast bench machine` measured here, in
// $XDG_CACHE_HOME/ballast/machine-<device>.json, else below ~/.cache.
std::filesystem::path profile_path(Device device);

void save_profile(const MachineProfile& profile, const std::filesystem::path& path);

// Nothing when there is no such file, or one of another device (`device_name`: the card's; "this"
// on the CPU). A file that cannot be read as a profile is as good as none: measuring again mends
// it.
std::optional<MachineProfile> load_profile(const std::string& device_name,
                                           const std::filesystem::path& path);

// The profile with the rates that were measured here, where they were; everything else stays.
MachineProfile with_measured_rates(MachineProfile profile, const std::string& device_name);

}  // namespace ballast::train
