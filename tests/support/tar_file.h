#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace ballast::test {

// Tar archives for tests, block by block.

inline void set_tar_checksum(std::string& block) {
  block.replace(148, 8, 8, ' ');
  std::uint64_t sum = 0;
  for (const char c : block.substr(0, 512)) sum += static_cast<unsigned char>(c);
  block.replace(148, 8, fmt::format("{:06o}", sum) + std::string("\0 ", 2));
}

struct TarEntry {
  std::string name;
  std::string data = {};
  char type = '0';
  std::string prefix = {};
  std::string size = {};  // the field as it is written; "": the number of bytes, in octal
  std::string magic = std::string(
      "ustar\0"
      "00",
      8);
};

inline std::string tar_header(const TarEntry& e) {
  std::string block(512, '\0');
  const auto put = [&](std::size_t at, std::string_view text) {
    block.replace(at, text.size(), text);
  };
  put(0, std::string_view(e.name).substr(0, 100));
  put(100, "0000644");
  put(108, "0001750");
  put(116, "0001750");
  put(124, e.size.empty() ? fmt::format("{:011o}", e.data.size()) : e.size);
  put(136, "14720000000");
  block[156] = e.type;
  put(257, e.magic);
  put(345, e.prefix);
  set_tar_checksum(block);
  return block;
}

inline std::string tar_member(const TarEntry& e) {
  return tar_header(e) + e.data + std::string((512 - e.data.size() % 512) % 512, '\0');
}

inline std::string gnu_long_name(const std::string& name) {
  return tar_member({.name = "././@LongLink", .data = name + std::string(1, '\0'), .type = 'L'});
}

inline std::string pax_record(const std::string& key, const std::string& value) {
  const std::size_t rest = key.size() + value.size() + 3;
  std::size_t length = rest + 1;
  while (fmt::format("{}", length).size() + rest != length) ++length;
  return fmt::format("{} {}={}\n", length, key, value);
}

inline std::string pax_header(const std::string& records) {
  return tar_member({.name = "PaxHeaders/x", .data = records, .type = 'x'});
}

inline std::string tar_end() { return std::string(1024, '\0'); }

}  // namespace ballast::test
