#pragma once

#include <cstddef>
#include <cstdint>

#include "core/to_size.h"

namespace ballast {

// A small generator for choosing among alternatives in debug modes (splitmix64). Not for data:
// noise and dropout come from the counter-based generator in core/random.h.
class RandomOrder {
 public:
  explicit RandomOrder(std::uint64_t seed) : state_(seed) {}

  std::size_t below(std::size_t n) {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return to_size((z ^ (z >> 31)) % n);
  }

 private:
  std::uint64_t state_;
};

}  // namespace ballast
