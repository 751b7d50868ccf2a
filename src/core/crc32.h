#pragma once

#include <cstdint>
#include <string_view>

namespace ballast {

// CRC-32 as ZIP and PNG have it: polynomial 0x04C11DB7 reflected, initial value and final XOR
// 0xFFFFFFFF. "123456789" gives 0xCBF43926. Bit by bit: for texts of files, which are short.
std::uint32_t crc32(std::string_view bytes);

}  // namespace ballast
