#include "core/convert.h"

#include <bit>
#include <cstring>
#include <limits>

#include "core/error.h"
#include "core/to_size.h"

namespace ballast {

namespace cpu {
BALLAST_PER_ISA(void convert(const void* from, DType from_type, void* to, DType to_type,
                             std::int64_t n, Rounding rounding))
}

namespace {

// The definition, 2^x by repeated products: the tables owe nothing to the vector code.
constexpr float power_of_two(int e) {
  float x = 1.0f;
  for (; e > 0; --e) x *= 2.0f;
  for (; e < 0; ++e) x *= 0.5f;
  return x;
}

constexpr float decode_e4m3(std::uint32_t b) {
  const int e = static_cast<int>(b >> 3 & 15u);
  const auto m = static_cast<float>(b & 7u);
  if ((b & 0x7fu) == 0x7fu) return std::numeric_limits<float>::quiet_NaN();
  const float a = e == 0 ? m * power_of_two(-9) : (8.0f + m) * power_of_two(e - 10);
  return b & 0x80u ? -a : a;
}

constexpr float decode_e5m2(std::uint32_t b) {
  const int e = static_cast<int>(b >> 2 & 31u);
  const auto m = static_cast<float>(b & 3u);
  if (e == 31 && m != 0.0f) return std::numeric_limits<float>::quiet_NaN();
  const float a = e == 31  ? std::numeric_limits<float>::infinity()
                  : e == 0 ? m * power_of_two(-16)
                           : (4.0f + m) * power_of_two(e - 17);
  return b & 0x80u ? -a : a;
}

constexpr std::array<float, 256> table(float (*decode)(std::uint32_t)) {
  std::array<float, 256> t{};
  for (std::uint32_t b = 0; b < 256; ++b) t[b] = decode(b);
  return t;
}

constexpr std::array<float, 256> kE4m3 = table(decode_e4m3);
constexpr std::array<float, 256> kE5m2 = table(decode_e5m2);

constexpr bool is_wide_integer(DType t) { return !info(t).floating && size_of(t) >= 4; }

}  // namespace

bool convertible(DType from, DType to) {
  if (from == to) return true;
  if (!info(to).floating) return false;
  return !is_wide_integer(from) || to == DType::f32 || to == DType::f64;
}

void convert(const void* from, DType from_type, void* to, DType to_type, std::int64_t n,
             Rounding rounding) {
  check(convertible(from_type, to_type), "{} does not convert to {}", from_type, to_type);
  if (n == 0) return;
  if (from_type == to_type) {
    std::memcpy(to, from, to_size(n) * size_of(from_type));
    return;
  }
  BALLAST_ISA_CALL(cpu, convert, from, from_type, to, to_type, n, rounding);
}

float to_f32(std::uint32_t bits, DType type) {
  switch (type) {
    case DType::f32:
      return std::bit_cast<float>(bits);
    case DType::bf16:
      return std::bit_cast<float>(bits << 16);
    case DType::f8_e4m3:
      return kE4m3[bits & 0xffu];
    case DType::f8_e5m2:
      return kE5m2[bits & 0xffu];
    case DType::f16: {
      const auto code = static_cast<std::uint16_t>(bits);
      float x = 0;
      convert(&code, DType::f16, &x, DType::f32, 1);
      return x;
    }
    default:
      check(false, "to_f32 of {}", type);
      return 0;
  }
}

std::uint32_t from_f32(float x, DType type, Rounding rounding) {
  check(info(type).floating && type != DType::f64, "from_f32 to {}", type);
  std::uint32_t bits = 0;  // little-endian: the element fills the low bytes
  convert(&x, DType::f32, &bits, type, 1, rounding);
  return bits;
}

float largest(DType type) {
  switch (type) {
    case DType::f32:
      return std::numeric_limits<float>::max();
    case DType::bf16:
      return 0x1.fep127f;
    case DType::f16:
      return 65504.0f;
    case DType::f8_e4m3:
      return 448.0f;
    case DType::f8_e5m2:
      return 57344.0f;
    default:
      check(false, "largest({})", type);
      return 0;
  }
}

const std::array<float, 256>& f8_values(DType type) {
  check(type == DType::f8_e4m3 || type == DType::f8_e5m2, "{} has no table of 256 values", type);
  return type == DType::f8_e4m3 ? kE4m3 : kE5m2;
}

}  // namespace ballast
