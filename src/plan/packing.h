#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ballast {

// A buffer to place: its bytes are taken during [first, last].
struct PackItem {
  std::uint32_t first = 0;
  std::uint32_t last = 0;
  std::uint64_t bytes = 0;
  std::uint64_t alignment = 256;

  friend bool operator==(const PackItem&, const PackItem&) = default;
};

struct Packing {
  std::vector<std::uint64_t> offset;  // by item
  std::uint64_t peak = 0;             // highest byte used
  std::uint64_t lower_bound = 0;      // most bytes alive at once: no packing can do better
};

// Most bytes alive at one instruction; linear in items and instructions.
std::uint64_t live_bound(std::span<const PackItem> items);

// Places each item at the lowest free offset: long-lived ones first, then the largest.
Packing pack(std::span<const PackItem> items);

}  // namespace ballast
