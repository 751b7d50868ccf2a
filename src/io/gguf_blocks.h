#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "io/file_dtype.h"

namespace ballast {

// A tensor type of GGUF files: so many elements at a time take so many bytes.
struct GgufType {
  std::uint32_t id = 0;
  std::string_view name;
  std::uint32_t elements = 1;      // of a block
  std::uint32_t bytes = 0;         // of a block
  std::optional<FileDType> plain;  // what one element is where a block is one; else quantised
};

// The types Ballast reads; nullptr for all others.
const GgufType* find_gguf_type(std::uint32_t id);
// The name of any type that is or was in use, "" for the others.
std::string_view gguf_type_name(std::uint32_t id);

// Whole blocks of a quantised type to f32: `to` has type.elements for each type.bytes of `blocks`.
// Every value is rounded at most once, so the bits are those of the reference on every machine.
void expand_blocks(const GgufType& type, std::span<const std::byte> blocks, std::span<float> to);

}  // namespace ballast
