#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace ballast {

// XXH3, 64 bits, of bytes that come in pieces: how they are cut does not matter. Finds accidents (a
// flipped bit, a torn write), not forgery.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) = delete;

  void add(std::span<const std::byte> bytes);
  std::uint64_t value() const;  // of all bytes so far
  std::string text() const;     // 16 hexadecimal digits

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Of bytes that are there as a whole; allocates nothing.
std::uint64_t checksum_of(std::span<const std::byte> bytes);
std::string checksum_text(std::string_view bytes);
// 16 lower-case hexadecimal digits, as checksum_text() gives them.
bool is_checksum_text(std::string_view text);

}  // namespace ballast
