#include "plan/packing.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <vector>

namespace ballast {
namespace {

// Items already placed, found by time: short-lived ones in every window they touch, so that placing
// one of thousands of temporaries looks at its neighbours only. Every list is in order of offsets.
class Placed {
 public:
  explicit Placed(std::uint32_t instructions) : windows_(instructions / kWindow + 1) {}

  void add(const PackItem& item, std::uint64_t offset) {
    const Entry e{item.first, item.last, offset, offset + item.bytes};
    if (item.last - item.first >= kLong * kWindow) return insert(long_, e);
    for (std::uint32_t w = item.first / kWindow; w <= item.last / kWindow; ++w) {
      insert(windows_[w], e);
    }
  }

  // taken(begin, end) for the ranges that are taken while the item is alive, in order of their
  // start, some of them twice, until it answers that it has seen enough.
  template <class Taken>
  void each(const PackItem& item, Taken&& taken) {
    lists_.clear();
    look_at(long_, item);
    for (std::uint32_t w = item.first / kWindow; w <= item.last / kWindow; ++w) {
      look_at(windows_[w], item);
    }
    while (!lists_.empty()) {
      List* lowest = &lists_.front();
      for (List& l : lists_) {
        if (l.next->begin < lowest->next->begin) lowest = &l;
      }
      if (taken(lowest->next->begin, lowest->next->end)) return;
      ++lowest->next;
      if (advance(*lowest, item)) continue;
      *lowest = lists_.back();
      lists_.pop_back();
    }
  }

 private:
  static constexpr std::uint32_t kWindow = 64;  // instructions
  static constexpr std::uint32_t kLong = 8;     // windows

  struct Entry {
    std::uint32_t first, last;
    std::uint64_t begin, end;
  };
  struct List {
    const Entry *next, *end;
  };

  static void insert(std::vector<Entry>& list, const Entry& e) {
    list.insert(std::ranges::upper_bound(list, e.begin, {}, &Entry::begin), e);
  }

  // To the first entry that is alive with the item; no: there is none.
  static bool advance(List& l, const PackItem& item) {
    while (l.next != l.end && (l.next->first > item.last || item.first > l.next->last)) ++l.next;
    return l.next != l.end;
  }

  void look_at(const std::vector<Entry>& entries, const PackItem& item) {
    List l{entries.data(), entries.data() + entries.size()};
    if (advance(l, item)) lists_.push_back(l);
  }

  std::vector<std::vector<Entry>> windows_;
  std::vector<Entry> long_;
  std::vector<List> lists_;
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
    placed.each(item, [&](std::uint64_t begin, std::uint64_t end) {
      if (at + item.bytes <= begin) return true;
      at = std::max(at, round_up(end, item.alignment));
      return false;
    });
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
