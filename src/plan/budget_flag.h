#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string>

#include "core/bytes.h"
#include "core/to_size.h"
#include "memory/budget.h"
#include "memory/tier.h"

namespace ballast {

// Budgets are advised as they are typed: in whole megabytes, no fewer than what is needed.
constexpr std::uint64_t kMegabyte = 1'000'000;
constexpr std::uint64_t megabytes_for(Bytes needed) {
  return (needed.count + kMegabyte - 1) / kMegabyte;
}

inline std::string budget_flag(Tier tier, std::uint64_t megabytes) {
  constexpr std::array<const char*, kTiers.size()> kFlags = {"gpu", "ram", "disk"};
  return fmt::format("--{} {}MB", kFlags[to_size(tier)], megabytes);
}

// What gives so many megabytes: the flag, or where a limit of the system allows no such budget the
// change that lifts it: "raise /sys/fs/cgroup/job/memory.max to 30MB".
std::string larger_budget(const Budget& budget, Tier tier, std::uint64_t megabytes);

}  // namespace ballast
