#pragma once

#include <fmt/format.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ballast {

// A size in memory or on disk. GB = 10^9, GiB = 2^30.
struct Bytes {
  std::uint64_t count = 0;

  constexpr auto operator<=>(const Bytes&) const = default;
  constexpr Bytes& operator+=(Bytes o) { return count += o.count, *this; }
  constexpr Bytes& operator-=(Bytes o) { return count -= o.count, *this; }
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return {a.count + b.count}; }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return {a.count - b.count}; }
  friend constexpr Bytes operator*(Bytes a, std::uint64_t n) { return {a.count * n}; }
};

constexpr std::uint64_t round_up(std::uint64_t n, std::uint64_t to) {
  return (n + to - 1) / to * to;
}

constexpr Bytes operator""_KiB(unsigned long long n) { return {n << 10}; }
constexpr Bytes operator""_MiB(unsigned long long n) { return {n << 20}; }
constexpr Bytes operator""_GiB(unsigned long long n) { return {n << 30}; }
constexpr Bytes operator""_GB(unsigned long long n) { return {n * 1000000000ull}; }

// "24GB", "1.5 GiB", "512MiB", "4096", "24G" (decimal); nullopt for anything else or beyond 2^64
// - 1.
std::optional<Bytes> parse_bytes(std::string_view text);

// "24 means 24 bytes; did you mean 24GB?": for sizes of memory that people type without a unit,
// below 1,000,000 and not 0. nullopt for everything else, also for what is no size.
std::optional<std::string> missing_unit(std::string_view text);

// "702.8 MB", "13.42 GB": decimal units, four significant digits.
std::string to_string(Bytes b);

}  // namespace ballast

template <>
struct fmt::formatter<ballast::Bytes> : fmt::formatter<std::string_view> {
  auto format(ballast::Bytes b, fmt::format_context& ctx) const {
    return fmt::formatter<std::string_view>::format(ballast::to_string(b), ctx);
  }
};
