#include "core/non_finite.h"

#include <algorithm>
#include <cstring>

namespace ballast {
namespace {

// An element is NaN or infinite where all of these bits are set; of float8_e4m3, which has no
// infinity, where it is NaN.
template <class Word>
std::optional<std::int64_t> find_set(std::span<const std::byte> bytes, Word mask) {
  constexpr std::size_t kBlock = 4096 / sizeof(Word);
  const std::size_t count = bytes.size() / sizeof(Word);
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t n = std::min(kBlock, count - begin);
    // Copied to where a vector may be loaded from.
    Word block[kBlock];
    std::memcpy(block, bytes.data() + begin * sizeof(Word), n * sizeof(Word));
    Word any = 0;
    for (std::size_t i = 0; i < n; ++i) {
      any = static_cast<Word>(any | static_cast<Word>((block[i] & mask) == mask));
    }
    if (any == 0) continue;
    for (std::size_t i = 0; i < n; ++i) {
      if ((block[i] & mask) == mask) return static_cast<std::int64_t>(begin + i);
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::int64_t> first_non_finite(std::span<const std::byte> bytes, DType dtype) {
  switch (dtype) {
    case DType::f64:
      return find_set<std::uint64_t>(bytes, 0x7ff0'0000'0000'0000);
    case DType::f32:
      return find_set<std::uint32_t>(bytes, 0x7f80'0000);
    case DType::f16:
      return find_set<std::uint16_t>(bytes, 0x7c00);
    case DType::bf16:
      return find_set<std::uint16_t>(bytes, 0x7f80);
    case DType::f8_e4m3:
      return find_set<std::uint8_t>(bytes, 0x7f);
    case DType::f8_e5m2:
      return find_set<std::uint8_t>(bytes, 0x7c);
    default:
      return std::nullopt;
  }
}

}  // namespace ballast
