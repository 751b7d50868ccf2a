#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "core/to_size.h"

namespace ballast {

// Where bytes live. On the CPU backend `device` is the declared share of RAM that compute works in.
enum class Tier : std::uint8_t { device, host, disk };

inline constexpr std::array<Tier, 3> kTiers = {Tier::device, Tier::host, Tier::disk};

constexpr std::string_view name_of(Tier t) {
  constexpr std::array<std::string_view, 3> kNames = {"device", "host", "disk"};
  return kNames[to_size(t)];
}

}  // namespace ballast
