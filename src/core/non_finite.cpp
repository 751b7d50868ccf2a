#include "core/non_finite.h"

#include <algorithm>
#include <cstring>

namespace ballast {
namespace {

// Those whose exponent has all bits set.
template <class Bits>
std::optional<std::int64_t> first_with(const std::byte* data, std::int64_t count, Bits exponent) {
  constexpr std::int64_t kBlock = 4096;
  const auto bad = [&](std::int64_t i) {
    Bits bits;
    std::memcpy(&bits, data + static_cast<std::size_t>(i) * sizeof bits, sizeof bits);
    return (bits & exponent) == exponent;
  };
  for (std::int64_t first = 0; first < count; first += kBlock) {
    const std::int64_t end = std::min(count, first + kBlock);
    Bits any = 0;
    for (std::int64_t i = first; i < end; ++i) any |= static_cast<Bits>(bad(i));
    for (std::int64_t i = first; any != 0 && i < end; ++i) {
      if (bad(i)) return i;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::int64_t> first_non_finite(const std::byte* data, DType dtype,
                                             std::int64_t count) {
  switch (dtype) {
    case DType::f64:
      return first_with<std::uint64_t>(data, count, 0x7ff0'0000'0000'0000u);
    case DType::f32:
      return first_with<std::uint32_t>(data, count, 0x7f80'0000u);
    case DType::bf16:
      return first_with<std::uint16_t>(data, count, 0x7f80u);
    case DType::f16:
      return first_with<std::uint16_t>(data, count, 0x7c00u);
    default:
      return std::nullopt;
  }
}

}  // namespace ballast
