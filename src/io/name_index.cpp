#include "io/name_index.h"

#include <algorithm>
#include <cstring>
#include <random>

namespace ballast {
namespace {

__extension__ using Wide = unsigned __int128;
constexpr std::uint64_t kPrime = (1ull << 61) - 1;

std::uint64_t multiply(std::uint64_t a, std::uint64_t b) {  // modulo kPrime
  const Wide product = Wide{a} * b;
  const std::uint64_t sum =
      (static_cast<std::uint64_t>(product) & kPrime) + static_cast<std::uint64_t>(product >> 61);
  return sum >= kPrime ? sum - kPrime : sum;
}

std::uint64_t draw_point() {
  std::random_device device;
  const std::uint64_t bits = std::uint64_t{device()} << 32 | device();
  return 256 + bits % (kPrime - 256);
}

}  // namespace

std::uint32_t NameIndex::hash(std::string_view name) {
  static const std::uint64_t point = draw_point();
  std::uint64_t h = name.size() + 1;
  while (!name.empty()) {
    std::uint64_t limb = 0;
    const std::size_t n = std::min<std::size_t>(name.size(), 7);  // 56 bits stay below the prime
    std::memcpy(&limb, name.data(), n);
    name.remove_prefix(n);
    h = multiply(h, point) + limb;
    if (h >= kPrime) h -= kPrime;
  }
  return static_cast<std::uint32_t>(multiply(h, point));
}

void NameIndex::grow() {
  std::vector<Slot> old(slots_.empty() ? 64 : 2 * slots_.size());
  old.swap(slots_);
  for (const Slot slot : old) {
    if (slot.number == kEmpty) continue;
    std::size_t i = slot.hash & (slots_.size() - 1);
    while (slots_[i].number != kEmpty) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = slot;
  }
}

}  // namespace ballast
