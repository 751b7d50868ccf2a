#include "plan/packing.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/bytes.h"

namespace ballast {
namespace {

using Range = std::pair<std::uint64_t, std::uint64_t>;

// Items already placed, found by time: each in the one or two windows it touches among those that
// are just longer than it lives, so that placing one of thousands of temporaries looks at its
// neighbours only. Most live shorter than the shortest window: what lives longer beside them is
// sorted once for each of these, and what lives all through a window is merged there to the few
// ranges it takes together.
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
      if (longer_[w].known) beside(longer_[w], w, e);
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
    Entries throughout;  // in order of their start, apart, each alive all the time
    Entries partly;      // in order of their start
  };

  static bool together(const Entry& e, const PackItem& item) {
    return e.first <= item.last && item.first <= e.last;
  }
  static void insert(Entries& sorted, const Entry& e) {
    sorted.insert(std::ranges::upper_bound(sorted, e.range, {}, &Entry::range), e);
  }
  static PackItem whole(std::uint32_t window) {
    return {.first = window * kWindow[0], .last = (window + 1) * kWindow[0] - 1, .bytes = 0};
  }
  static bool lives_throughout(const Entry& e, std::uint32_t window) {
    return e.first <= whole(window).first && whole(window).last <= e.last;
  }

  // The entry takes the place of those that it touches.
  static void merge(Entries& apart, Range range) {
    const auto begin = std::ranges::lower_bound(apart, range.first, {},
                                                [](const Entry& e) { return e.range.second; });
    auto end = begin;
    for (; end != apart.end() && end->range.first <= range.second; ++end) {
      range = {std::min(range.first, end->range.first), std::max(range.second, end->range.second)};
    }
    const Entry merged = {0, ~0u, range};
    if (begin == end) {
      apart.insert(begin, merged);
    } else {
      *begin = merged;
      apart.erase(begin + 1, end);
    }
  }

  static void beside(Longer& longer, std::uint32_t window, const Entry& e) {
    if (lives_throughout(e, window)) {
      merge(longer.throughout, e.range);
    } else {
      insert(longer.partly, e);
    }
  }

  const Longer& longer(std::uint32_t window) {
    Longer& found = longer_[window];
    if (found.known) return found;
    found.known = true;
    busy_.clear();
    const auto with = [&](const Entry& e) {
      if (!together(e, whole(window))) return;
      if (lives_throughout(e, window)) {
        busy_.push_back(e.range);
      } else {
        found.partly.push_back(e);
      }
    };
    for (const Entry& e : long_) with(e);
    for (std::size_t l = 1; l < kLevels; ++l) {  // a window of these holds the whole of it
      for (const Entry& e : levels_[l][whole(window).first / kWindow[l]]) with(e);
    }
    std::ranges::sort(found.partly, {}, &Entry::range);
    std::ranges::sort(busy_);
    for (const Range& range : busy_) {
      Entries& apart = found.throughout;
      if (!apart.empty() && range.first <= apart.back().range.second) {
        apart.back().range.second = std::max(apart.back().range.second, range.second);
      } else {
        apart.push_back({0, ~0u, range});
      }
    }
    return found;
  }

  std::uint64_t beside_windows(const PackItem& item) {
    struct Rest {
      const Entry *next, *end;
    };
    std::array<Rest, 6> lists;
    std::size_t count = 0;
    const auto with = [&](const Entries& e) {
      if (!e.empty()) lists[count++] = {e.data(), e.data() + e.size()};
    };
    const std::uint32_t first = item.first / kWindow[0], last = item.last / kWindow[0];
    for (std::uint32_t w = first; w <= last; ++w) {
      with(longer(w).throughout), with(longer(w).partly), with(levels_[0][w]);
    }
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

constexpr std::array kLongLived = {64u, 16u, 256u, 1024u, ~0u};  // instructions

// The largest first.
std::vector<std::uint32_t> by_size(std::span<const PackItem> items) {
  std::vector<std::pair<std::uint64_t, std::uint32_t>> keys(items.size());
  for (std::uint32_t i = 0; i < items.size(); ++i) keys[i] = {~items[i].bytes, i};
  std::ranges::sort(keys);
  std::vector<std::uint32_t> order(items.size());
  std::ranges::transform(keys, order.begin(), [](const auto& key) { return key.second; });
  return order;
}

// Places those that live for more than so many instructions, then the others, each in the order
// given. It can be left where a packing gets too high, and gone on with if others get no lower.
class Attempt {
 public:
  Attempt(std::span<const PackItem> items, const std::vector<std::uint32_t>& order,
          std::uint32_t long_lived, std::uint32_t instructions)
      : items_(items), order_(order), placed_(instructions) {
    std::ranges::stable_partition(
        order_, [&](std::uint32_t i) { return items[i].last - items[i].first > long_lived; });
    packing_.offset.resize(items.size());
  }

  // Whether all are placed and none reaches beyond `most`.
  bool run(std::uint64_t most) {
    for (; next_ < order_.size(); ++next_) {
      const std::uint32_t i = order_[next_];
      const PackItem& item = items_[i];
      if (item.bytes == 0) continue;
      const std::uint64_t at = placed_.lowest_free(item);
      if (at + item.bytes > most) return false;
      packing_.offset[i] = at;
      packing_.peak = std::max(packing_.peak, at + item.bytes);
      placed_.add(item, at);
    }
    return packing_.peak <= most;
  }

  Packing take() { return std::move(packing_); }
  std::uint64_t peak() const { return packing_.peak; }

 private:
  std::span<const PackItem> items_;
  std::vector<std::uint32_t> order_;
  std::size_t next_ = 0;
  Placed placed_;
  Packing packing_;
};

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
  const std::vector<std::uint32_t> order = by_size(items);

  // What counts as long-lived depends on the program: a block's worth of instructions, or several,
  // or nothing. The first that is good is taken: alignment alone costs about as much. Else the
  // lowest.
  const std::uint64_t good = bound + bound / 256;
  std::vector<Attempt> attempts;
  attempts.reserve(kLongLived.size());
  Attempt* best = nullptr;
  for (const std::uint32_t long_lived : kLongLived) {
    Attempt& a = attempts.emplace_back(items, order, long_lived, instructions);
    if (a.run(good)) {
      best = &a;
      break;
    }
  }
  if (!best) {
    for (Attempt& a : attempts) {
      if (a.run(best ? best->peak() - 1 : ~0ull)) best = &a;
    }
  }
  Packing packing = best->take();
  packing.lower_bound = bound;
  return packing;
}

}  // namespace ballast
