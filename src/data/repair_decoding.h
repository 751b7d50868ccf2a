#pragma once

#include <string>
#include <string_view>

namespace ballast::data {

// A line of text whose UTF-8 was once read as Windows-1252 or Latin-1 ("donâ€™t", "cafÃ©"), decoded
// as it should have been; the parts of it that were, where only parts were. Once: text that was
// damaged twice is repaired by two calls. Text that may be meant as it stands ("«CAFÉ»") is left
// alone, and so is what other code pages made of UTF-8.
std::u32string repair_decoding(std::u32string_view line);

// What Windows-1252 has at byte 0x80 + i; five places there mean nothing and stay control
// characters.
char32_t windows_1252(unsigned i);  // i < 32

}  // namespace ballast::data
