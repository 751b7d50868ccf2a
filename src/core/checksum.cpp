#include "core/checksum.h"

#include <fmt/format.h>

#include <algorithm>

// Header-only use: nothing to link.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ballast {

struct Checksum::State {
  XXH3_state_t xxh;  // asks for 64-byte alignment, which new gives since C++17
};

Checksum::Checksum() : state_(std::make_unique<State>()) {
  XXH3_INITSTATE(&state_->xxh);
  XXH3_64bits_reset(&state_->xxh);
}
Checksum::~Checksum() = default;
Checksum::Checksum(Checksum&&) noexcept = default;

void Checksum::add(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_64bits_update(&state_->xxh, bytes.data(), bytes.size());
}

std::uint64_t Checksum::value() const { return XXH3_64bits_digest(&state_->xxh); }

std::string Checksum::text() const { return fmt::format("{:016x}", value()); }

std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::string checksum_text(std::string_view bytes) {
  return fmt::format("{:016x}", checksum_of(std::as_bytes(std::span(bytes))));
}

bool is_checksum_text(std::string_view text) {
  return text.size() == 16 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace ballast
