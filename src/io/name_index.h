#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ballast {

// Finds names by hash. The names themselves live elsewhere: insert() and find() are told how to
// look them up by number, so the index costs 16 to 32 bytes per name.
//
// The hash is a polynomial modulo 2^61 - 1 at a point drawn when the process starts. A file cannot
// be made whose names collide, because its author does not know the point.
class NameIndex {
 public:
  // The number already stored for this name; otherwise stores `number` and returns nullopt.
  // name_at(number) must give back the name of every number inserted before.
  template <class NameAt>
  std::optional<std::uint32_t> insert(std::string_view name, std::uint32_t number,
                                      NameAt&& name_at) {
    if (2 * (count_ + 1) > slots_.size()) grow();
    const std::uint32_t h = hash(name);
    Slot& slot = slots_[probe(name, h, name_at)];
    if (slot.number != kEmpty) return slot.number;
    slot = {h, number};
    ++count_;
    return std::nullopt;
  }

  template <class NameAt>
  std::optional<std::uint32_t> find(std::string_view name, NameAt&& name_at) const {
    if (slots_.empty()) return std::nullopt;
    const Slot slot = slots_[probe(name, hash(name), name_at)];
    return slot.number == kEmpty ? std::nullopt : std::optional(slot.number);
  }

 private:
  static constexpr std::uint32_t kEmpty = ~0u;
  struct Slot {
    std::uint32_t hash = 0;  // spares looking at most names that share a place
    std::uint32_t number = kEmpty;
  };

  template <class NameAt>
  std::size_t probe(std::string_view name, std::uint32_t h, NameAt&& name_at) const {
    std::size_t i = h & (slots_.size() - 1);
    while (slots_[i].number != kEmpty &&
           (slots_[i].hash != h || name_at(slots_[i].number) != name)) {
      i = (i + 1) & (slots_.size() - 1);
    }
    return i;
  }

  void grow();
  static std::uint32_t hash(std::string_view name);

  std::vector<Slot> slots_;  // a power of two, at most half full
  std::size_t count_ = 0;
};

// Keeps names that were read from a text that itself is kept: those that stand there as they are
// cost nothing, the decoded ones are copied. The views stay good when the pool is moved.
class NamePool {
 public:
  std::string_view keep(std::string_view name, std::string_view text) {
    const std::less<const char*> before;
    const bool inside =
        !before(name.data(), text.data()) && before(name.data(), text.data() + text.size());
    return inside ? name : std::string_view(decoded_.emplace_back(name));
  }

 private:
  std::deque<std::string> decoded_;
};

}  // namespace ballast
