#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "core/random.h"
#include "core/to_size.h"

namespace ballast::data {

// Puts the values into an order that depends on nothing but the source (Fisher-Yates from the
// back; element i of the source decides the place of value i).
template <class T>
void shuffle(std::span<T> values, const RandomSource& source) {
  for (std::size_t i = values.size(); i-- > 1;) {
    const std::uint64_t wide = std::uint64_t{source.word(i)} * (i + 1);
    std::swap(values[i], values[to_size(wide >> 32)]);
  }
}

}  // namespace ballast::data
