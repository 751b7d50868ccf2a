#include "plan/packing.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

namespace ballast {
namespace {

using Range = std::pair<std::uint64_t, std::uint64_t>;

// Items already placed, found by time: each in the one or two windows it touches among those that
// are just longer than it lives, so that placing one of thousands of temporaries looks at its
// neighbours only.
class Placed {
 public:
  explicit Placed(std::uint32_t instructions) {
    for (std::size_t l = 0; l < kLevels; ++l) levels_[l].resize(instructions / kWindow[l] + 1);
  }

  void add(const PackItem& item, std::uint64_t offset) {
    const Entry e{item.first, item.last, {offset, offset + item.bytes}};
    for (std::size_t l = 0; l < kLevels; ++l) {
      if (item.last - item.first >= kWindow[l]) continue;
      const std::uint32_t first = item.first / kWindow[l], last = item.last / kWindow[l];
      levels_[l][first].push_back(e);
      if (last > first) levels_[l][last].push_back(e);
      return;
    }
    long_.push_back(e);
  }

  // Ranges taken while the item is alive, in order of their start.
  const std::vector<Range>& taken(const PackItem& item) {
    busy_.clear();
    collect(long_, item, 0);
    for (std::size_t l = 0; l < kLevels; ++l) {
      const std::uint32_t first = item.first / kWindow[l];
      for (std::uint32_t w = first; w <= item.last / kWindow[l]; ++w) {
        // What began before this window stands in the one before as well.
        collect(levels_[l][w], item, w == first ? 0 : w * kWindow[l]);
      }
    }
    std::ranges::sort(busy_);
    return busy_;
  }

 private:
  static constexpr std::size_t kLevels = 3;
  static constexpr std::array<std::uint32_t, kLevels> kWindow = {16, 256, 4096};  // instructions

  struct Entry {
    std::uint32_t first, last;
    Range range;
  };

  void collect(const std::vector<Entry>& from, const PackItem& item, std::uint32_t begun) {
    for (const Entry& e : from) {
      if (e.first <= item.last && item.first <= e.last && e.first >= begun) {
        busy_.push_back(e.range);
      }
    }
  }

  std::array<std::vector<std::vector<Entry>>, kLevels> levels_;
  std::vector<Entry> long_;
  std::vector<Range> busy_;
};

std::uint64_t round_up(std::uint64_t n, std::uint64_t to) { return (n + to - 1) / to * to; }

Packing pack_in_order(std::span<const PackItem> items, const std::vector<std::uint32_t>& order,
                      std::uint32_t instructions) {
  Packing packing;
  packing.offset.resize(items.size());
  Placed placed(instructions);
  for (const std::uint32_t i : order) {
    const PackItem& item = items[i];
    if (item.bytes == 0) continue;
    std::uint64_t at = 0;
    for (const auto& [begin, end] : placed.taken(item)) {
      if (at + item.bytes <= begin) break;
      at = std::max(at, round_up(end, item.alignment));
    }
    packing.offset[i] = at;
    packing.peak = std::max(packing.peak, at + item.bytes);
    placed.add(item, at);
  }
  return packing;
}

}  // namespace

std::uint64_t live_bound(std::span<const PackItem> items) {
  std::uint32_t end = 0;
  for (const PackItem& i : items) end = std::max(end, i.last + 2);
  std::vector<std::int64_t> change(end, 0);
  for (const PackItem& i : items) {
    change[i.first] += static_cast<std::int64_t>(i.bytes);
    change[i.last + 1] -= static_cast<std::int64_t>(i.bytes);
  }
  std::int64_t live = 0, most = 0;
  for (const std::int64_t c : change) most = std::max(most, live += c);
  return static_cast<std::uint64_t>(most);
}

Packing pack(std::span<const PackItem> items) {
  std::uint32_t instructions = 1;
  for (const PackItem& i : items) instructions = std::max(instructions, i.last + 1);
  const std::uint64_t bound = live_bound(items);

  // What counts as long-lived depends on the program: a block's worth of instructions, or several.
  Packing best;
  best.peak = ~0ull;
  for (const std::uint32_t long_lived : {64u, 16u, 256u}) {
    std::vector<std::uint32_t> order(items.size());
    std::iota(order.begin(), order.end(), 0u);
    std::ranges::stable_sort(order, [&](std::uint32_t a, std::uint32_t b) {
      const auto key = [&](const PackItem& i) {
        return std::tuple(i.last - i.first > long_lived, i.bytes);
      };
      return key(items[a]) > key(items[b]);
    });
    Packing p = pack_in_order(items, order, instructions);
    if (p.peak < best.peak) best = std::move(p);
    if (best.peak - bound <= bound / 256) break;  // alignment alone costs about as much
  }
  best.lower_bound = bound;
  return best;
}

}  // namespace ballast
