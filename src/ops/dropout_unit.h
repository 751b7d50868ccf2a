#pragma once

#include <cstdint>

// Plain C++17: CUDA sources include it.
namespace ballast::ops {

// What is dropped or stays together: an element; a column, by the word of its number; the whole
// matrix, by word 0, which is then not divided by 1 - p.
enum class DropUnit : std::uint8_t { element, column, matrix };

}  // namespace ballast::ops
