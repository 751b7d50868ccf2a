#include "io/gguf_blocks.h"

#include <array>
#include <cstring>

#include "core/convert.h"
#include "core/error.h"

namespace ballast {
namespace {

struct Id {
  enum : std::uint32_t {
    q4_0 = 2,
    q4_1 = 3,
    q5_0 = 6,
    q5_1 = 7,
    q8_0 = 8,
    q2_k = 10,
    q3_k = 11,
    q4_k = 12,
    q5_k = 13,
    q6_k = 14,
    iq4_nl = 20,
    iq4_xs = 23,
  };
};

constexpr GgufType kGgufTypes[] = {
    {0, "F32", 1, 4, FileDType::f32},   {1, "F16", 1, 2, FileDType::f16},
    {Id::q4_0, "Q4_0", 32, 18, {}},     {Id::q4_1, "Q4_1", 32, 20, {}},
    {Id::q5_0, "Q5_0", 32, 22, {}},     {Id::q5_1, "Q5_1", 32, 24, {}},
    {Id::q8_0, "Q8_0", 32, 34, {}},     {Id::q2_k, "Q2_K", 256, 84, {}},
    {Id::q3_k, "Q3_K", 256, 110, {}},   {Id::q4_k, "Q4_K", 256, 144, {}},
    {Id::q5_k, "Q5_K", 256, 176, {}},   {Id::q6_k, "Q6_K", 256, 210, {}},
    {Id::iq4_nl, "IQ4_NL", 32, 18, {}}, {Id::iq4_xs, "IQ4_XS", 256, 136, {}},
    {24, "I8", 1, 1, FileDType::i8},    {25, "I16", 1, 2, FileDType::i16},
    {26, "I32", 1, 4, FileDType::i32},  {27, "I64", 1, 8, FileDType::i64},
    {28, "F64", 1, 8, FileDType::f64},  {30, "BF16", 1, 2, FileDType::bf16},
};

constexpr std::array<std::string_view, 43> kGgufNames = {
    "F32",   "F16",        "Q4_0",       "Q4_1",       "Q4_2",     "Q4_3",     "Q5_0",
    "Q5_1",  "Q8_0",       "Q8_1",       "Q2_K",       "Q3_K",     "Q4_K",     "Q5_K",
    "Q6_K",  "Q8_K",       "IQ2_XXS",    "IQ2_XS",     "IQ3_XXS",  "IQ1_S",    "IQ4_NL",
    "IQ3_S", "IQ2_S",      "IQ4_XS",     "I8",         "I16",      "I32",      "I64",
    "F64",   "IQ1_M",      "BF16",       "Q4_0_4_4",   "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",
    "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4",    "NVFP4",    "",
    ""};

constexpr std::int8_t kNonlinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                        1,    13,   25,  38,  53,  69,  89,  113};

// The bytes of one block.
struct Block {
  const unsigned char* at;

  float half(int i) const {
    std::uint16_t bits;
    std::memcpy(&bits, at + i, sizeof bits);
    return to_f32(bits, DType::f16);
  }
  int operator[](int i) const { return at[i]; }
  int low(int i) const { return at[i] & 15; }
  int high(int i) const { return at[i] >> 4; }
  int sign(int i) const { return static_cast<signed char>(at[i]); }
  std::uint32_t u32(int i) const {
    std::uint32_t bits;
    std::memcpy(&bits, at + i, sizeof bits);
    return bits;
  }
};

float times(float d, int q) { return d * static_cast<float>(q); }

// 32 elements: low halves of 16 bytes first, then the high ones.
template <class Value>
void nibbles(float* y, Value&& value) {
  for (int j = 0; j < 16; ++j) {
    y[j] = value(j, false);
    y[j + 16] = value(j, true);
  }
}

int nibble(Block b, int i, bool high) { return high ? b.high(i) : b.low(i); }

void expand_q5(Block b, float* y, int bits_at, int offset, float shift) {
  const float d = b.half(0);
  const std::uint32_t fifth = b.u32(bits_at);
  nibbles(y, [&](int j, bool high) {
    const int q =
        nibble(b, bits_at + 4 + j, high) | static_cast<int>(fifth >> (high ? j + 16 : j) & 1) << 4;
    return times(d, q - offset) + shift;
  });
}

// The 6-bit scale and minimum of sub-block j of Q4_K and Q5_K, packed into 12 bytes.
struct SubScale {
  int scale, minimum;
};
SubScale sub_scale(Block s, int j) {
  if (j < 4) return {s[j] & 63, s[j + 4] & 63};
  return {(s[j + 4] & 15) | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4};
}

void expand_q4_k(Block b, float* y, bool five) {
  const float d = b.half(0), dmin = b.half(2);
  const int values = five ? 48 : 16;
  for (int j = 0; j < 8; ++j) {
    const auto [scale, minimum] = sub_scale({b.at + 4}, j);
    const float step = times(d, scale), base = times(dmin, minimum);
    for (int l = 0; l < 32; ++l) {
      int q = nibble(b, values + 32 * (j / 2) + l, j % 2 == 1);
      if (five) q += 16 * (b[16 + l] >> j & 1);
      y[32 * j + l] = times(step, q) - base;
    }
  }
}

void expand_q6_k(Block b, float* y) {
  const float d = b.half(208);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, t = i / 32 % 4, l = i % 32;
    const int low = nibble(b, 64 * half + 32 * (t % 2) + l, t >= 2);
    const int high = b[128 + 32 * half + l] >> (2 * t) & 3;
    y[i] = times(times(d, b.sign(192 + 8 * half + 2 * t + l / 16)), (low | high << 4) - 32);
  }
}

void expand_q2_k(Block b, float* y) {
  const float d = b.half(80), dmin = b.half(82);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, s = i / 32 % 4, g = i / 16 % 2, l = i % 16;
    const int q = b[16 + 32 * half + 16 * g + l] >> (2 * s) & 3;
    const int k = b[8 * half + 2 * s + g];
    y[i] = times(times(d, k & 15), q) - times(dmin, k >> 4);
  }
}

void expand_q3_k(Block b, float* y) {
  const float d = b.half(108);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, s = i / 32 % 4, g = i / 16 % 2, l = i % 16;
    const int k = 8 * half + 2 * s + g;
    const int scale = ((k < 8 ? b.low(96 + k) : b.high(96 + k - 8)) |
                       (b[96 + 8 + k % 4] >> (2 * (k / 4)) & 3) << 4) -
                      32;
    const int q = (b[32 + 32 * half + 16 * g + l] >> (2 * s) & 3) -
                  ((b[16 * g + l] >> (4 * half + s) & 1) != 0 ? 0 : 4);
    y[i] = times(times(d, scale), q);
  }
}

void expand_iq4_xs(Block b, float* y) {
  const float d = b.half(0);
  const int high = b[2] | b[3] << 8;
  for (int s = 0; s < 8; ++s) {
    const int scale = (b[4 + s / 2] >> (4 * (s % 2)) & 15) | (high >> (2 * s) & 3) << 4;
    const float step = times(d, scale - 32);
    nibbles(y + 32 * s, [&](int j, bool upper) {
      return times(step, kNonlinear[nibble(b, 8 + 16 * s + j, upper)]);
    });
  }
}

void expand_block(std::uint32_t id, Block b, float* y) {
  switch (id) {
    case Id::q8_0:
      for (int i = 0; i < 32; ++i) y[i] = times(b.half(0), b.sign(2 + i));
      return;
    case Id::q4_0:
      return nibbles(
          y, [&, d = b.half(0)](int j, bool high) { return times(d, nibble(b, 2 + j, high) - 8); });
    case Id::q4_1:
      return nibbles(y, [&, d = b.half(0), m = b.half(2)](int j, bool high) {
        return times(d, nibble(b, 4 + j, high)) + m;
      });
    case Id::q5_0:
      return expand_q5(b, y, 2, 16, 0);
    case Id::q5_1:
      return expand_q5(b, y, 4, 0, b.half(2));
    case Id::q2_k:
      return expand_q2_k(b, y);
    case Id::q3_k:
      return expand_q3_k(b, y);
    case Id::q4_k:
      return expand_q4_k(b, y, false);
    case Id::q5_k:
      return expand_q4_k(b, y, true);
    case Id::q6_k:
      return expand_q6_k(b, y);
    case Id::iq4_nl:
      return nibbles(y, [&, d = b.half(0)](int j, bool high) {
        return times(d, kNonlinear[nibble(b, 2 + j, high)]);
      });
    case Id::iq4_xs:
      return expand_iq4_xs(b, y);
    default:
      check(false, "GGUF type {} has no blocks", id);
  }
}

}  // namespace

const GgufType* find_gguf_type(std::uint32_t id) {
  for (const GgufType& t : kGgufTypes) {
    if (t.id == id) return &t;
  }
  return nullptr;
}

std::string_view gguf_type_name(std::uint32_t id) {
  return id < kGgufNames.size() ? kGgufNames[id] : "";
}

void expand_blocks(const GgufType& type, std::span<const std::byte> blocks, std::span<float> to) {
  const std::size_t count = blocks.size() / type.bytes;
  check(blocks.size() == count * type.bytes && to.size() == count * type.elements,
        "{} bytes of {} for {} elements", blocks.size(), type.name, to.size());
  const auto* at = reinterpret_cast<const unsigned char*>(blocks.data());
  for (std::size_t i = 0; i < count; ++i) {
    expand_block(type.id, {at + i * type.bytes}, to.data() + i * type.elements);
  }
}

}  // namespace ballast
