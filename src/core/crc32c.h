#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ballast {

// CRC-32C: polynomial 0x1EDC6F41 reflected, initial value and final XOR 0xFFFFFFFF.
// "123456789" gives 0xE3069283. Allocates nothing. About 0.35 GB/s: for records, not for weights.
std::uint32_t crc32c(std::span<const std::byte> bytes);

}  // namespace ballast
