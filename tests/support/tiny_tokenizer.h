#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

// Small tokenizer files, made by hand.
namespace ballast::test {

struct TestPiece {
  std::string text;
  float score = 0;
  int type = 1;  // as in a ModelProto
};

inline std::string varint(std::uint64_t n) {
  std::string out;
  for (; n >= 0x80; n >>= 7) out += static_cast<char>(n | 0x80);
  return out += static_cast<char>(n);
}
inline std::string proto_number(unsigned field, std::uint64_t n) {
  return varint(field << 3) + varint(n);
}
inline std::string proto_bytes(unsigned field, std::string_view text) {
  return varint(field << 3 | 2) + varint(text.size()) + std::string(text);
}
inline std::string proto_float(unsigned field, float value) {
  char bytes[4];
  std::memcpy(bytes, &value, 4);
  return varint(field << 3 | 5) + std::string(bytes, 4);
}

inline std::string proto_piece(const TestPiece& p) {
  return proto_bytes(1, proto_bytes(1, p.text) + proto_float(2, p.score) +
                            proto_number(3, static_cast<std::uint64_t>(p.type)));
}

struct TestModel {
  std::vector<TestPiece> pieces;
  std::string charsmap = {};
  bool byte_fallback = false;
  std::string normalizer = {};  // more fields of the normalizer_spec
};

inline std::string sentencepiece_file(const TestModel& m) {
  std::string out;
  for (const TestPiece& p : m.pieces) out += proto_piece(p);
  out += proto_bytes(2, proto_number(3, 1) + proto_number(35, m.byte_fallback ? 1 : 0));
  std::string spec = proto_bytes(1, "test");
  if (!m.charsmap.empty()) spec += proto_bytes(2, m.charsmap);
  return out + proto_bytes(3, spec + m.normalizer);
}

// A double array in which every node has 256 units of its own.
inline std::string charsmap(const std::map<std::string, std::string>& rules) {
  std::vector<std::uint32_t> units(256, 0);
  std::string pool;
  std::map<std::string, std::size_t> nodes = {{"", 0}};  // prefix -> unit
  std::map<std::string, std::size_t> blocks;             // prefix -> its children's block
  const auto block = [&](const std::string& prefix) {
    const auto [at, fresh] = blocks.try_emplace(prefix, units.size());
    if (fresh) {
      units.resize(units.size() + 256);
      const std::size_t node = nodes.at(prefix);
      units[node] |= static_cast<std::uint32_t>(node ^ at->second) << 10;
    }
    return at->second;
  };
  for (const auto& [from, to] : rules) {
    std::string prefix;
    for (const char c : from) {
      const std::size_t unit = block(prefix) ^ static_cast<unsigned char>(c);
      prefix += c;
      if (nodes.try_emplace(prefix, unit).second) units[unit] |= static_cast<unsigned char>(c);
    }
    const std::size_t leaf = block(prefix);
    units[nodes.at(prefix)] |= 0x100;
    units[leaf] = 0x80000000u | static_cast<std::uint32_t>(pool.size());
    pool += to + '\0';
  }
  const auto bytes = static_cast<std::uint32_t>(4 * units.size());
  std::string out(4 + bytes, '\0');
  std::memcpy(out.data(), &bytes, 4);
  std::memcpy(out.data() + 4, units.data(), bytes);
  return out + pool;
}

inline std::string base64(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < text.size(); i += 3) {
    std::uint32_t n = 0;
    for (std::size_t j = i; j < i + 3; ++j) {
      n = n << 8 | (j < text.size() ? static_cast<unsigned char>(text[j]) : 0u);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      out += i + j > text.size() ? '=' : kDigits[n >> (18 - 6 * j) & 63];
    }
  }
  return out;
}

}  // namespace ballast::test
