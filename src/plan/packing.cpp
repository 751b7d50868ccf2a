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

std::uint64_t round_up(std::uint64_t n, std::uint64_t to) { return (n + to - 1) / to * to; }

// Items already placed, found by time: each in the one or two windows it touches among those that
// are just longer than it lives, so that placing one of thousands of temporaries looks at its
// neighbours only. Most live shorter than the shortest window: what lives longer beside them is
// sorted once for each of these.
class Placed {
 public:
  explicit Placed(std::uint32_t instructions) : longer_(instructions / kWindow[0] + 1) {
    for (std::size_t l = 0; l < kLevels; ++l) levels_[l].resize(instructions / kWindow[l] + 1);
  }

  void add(const PackItem& item, std::uint64_t offset) {
    const Entry e{item.first, item.last, {offset, offset + item.bytes}};
    const std::uint32_t first = item.first / kWindow[0], last = item.last / kWindow[0];
    if (item.last - item.first < kWindow[0]) {
      insert(levels_[0][first], e);
      if (last > first) insert(levels_[0][last], e);
      return;
    }
    for (std::uint32_t w = first; w <= last; ++w) {
      if (longer_[w].known) insert(longer_[w].entries, e);
    }
    for (std::size_t l = 1; l < kLevels; ++l) {
      if (item.last - item.first >= kWindow[l]) continue;
      const std::uint32_t begin = item.first / kWindow[l], end = item.last / kWindow[l];
      levels_[l][begin].push_back(e);
      if (end > begin) levels_[l][end].push_back(e);
      return;
    }
    long_.push_back(e);
  }

  // The lowest offset at which nothing is while the item is alive.
  std::uint64_t lowest_free(const PackItem& item) {
    return item.last - item.first < kWindow[0] ? beside_windows(item) : beside_all(item);
  }

 private:
  static constexpr std::size_t kLevels = 3;
  static constexpr std::array<std::uint32_t, kLevels> kWindow = {16, 256, 4096};  // instructions

  struct Entry {
    std::uint32_t first, last;
    Range range;
  };
  using Entries = std::vector<Entry>;
  struct Longer {
    bool known = false;
    Entries entries;  // in order of their start
  };

  static bool together(const Entry& e, const PackItem& item) {
    return e.first <= item.last && item.first <= e.last;
  }
  static void insert(Entries& sorted, const Entry& e) {
    sorted.insert(std::ranges::upper_bound(sorted, e.range, {}, &Entry::range), e);
  }

  const Entries& longer(std::uint32_t window) {
    Longer& found = longer_[window];
    if (found.known) return found.entries;
    found.known = true;
    const PackItem whole = {
        .first = window * kWindow[0], .last = (window + 1) * kWindow[0] - 1, .bytes = 0};
    for (const Entry& e : long_) {
      if (together(e, whole)) found.entries.push_back(e);
    }
    for (std::size_t l = 1; l < kLevels; ++l) {  // a window of these holds the whole of it
      for (const Entry& e : levels_[l][whole.first / kWindow[l]]) {
        if (together(e, whole)) found.entries.push_back(e);
      }
    }
    std::ranges::sort(found.entries, {}, &Entry::range);
    return found.entries;
  }

  std::uint64_t beside_windows(const PackItem& item) {
    struct Rest {
      const Entry *next, *end;
    };
    std::array<Rest, 4> lists;
    std::size_t count = 0;
    const auto with = [&](const Entries& e) {
      if (!e.empty()) lists[count++] = {e.data(), e.data() + e.size()};
    };
    const std::uint32_t first = item.first / kWindow[0], last = item.last / kWindow[0];
    for (std::uint32_t w = first; w <= last; ++w) with(longer(w)), with(levels_[0][w]);
    std::uint64_t at = 0;
    while (count > 0) {
      std::size_t lowest = 0;
      for (std::size_t l = 1; l < count; ++l) {
        if (lists[l].next->range.first < lists[lowest].next->range.first) lowest = l;
      }
      const Entry& e = *lists[lowest].next;
      if (at + item.bytes <= e.range.first) break;
      if (together(e, item)) at = std::max(at, round_up(e.range.second, item.alignment));
      if (++lists[lowest].next == lists[lowest].end) lists[lowest] = lists[--count];
    }
    return at;
  }

  std::uint64_t beside_all(const PackItem& item) {
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
    std::uint64_t at = 0;
    for (const auto& [begin, end] : busy_) {
      if (at + item.bytes <= begin) break;
      at = std::max(at, round_up(end, item.alignment));
    }
    return at;
  }

  void collect(const Entries& from, const PackItem& item, std::uint32_t begun) {
    for (const Entry& e : from) {
      if (together(e, item) && e.first >= begun) busy_.push_back(e.range);
    }
  }

  std::array<std::vector<Entries>, kLevels> levels_;  // the lowest in order of their start
  std::vector<Longer> longer_;                        // by window of the lowest level
  Entries long_;
  std::vector<Range> busy_;
};

Packing pack_in_order(std::span<const PackItem> items, const std::vector<std::uint32_t>& order,
                      std::uint32_t instructions) {
  Packing packing;
  packing.offset.resize(items.size());
  Placed placed(instructions);
  for (const std::uint32_t i : order) {
    const PackItem& item = items[i];
    if (item.bytes == 0) continue;
    const std::uint64_t at = placed.lowest_free(item);
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
