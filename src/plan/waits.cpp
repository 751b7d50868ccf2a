#include "plan/waits.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

namespace ballast {
namespace {

using Counts = std::array<std::uint32_t, kLaneCount>;

// For each byte of a tier: who wrote it last, and who has read it since.
class ByteHistory {
 public:
  struct Touched {
    std::uint64_t end;
    Lane writer = Lane::compute;
    std::uint32_t write_count = 0;  // 0: not written in this program
    Counts read_counts{};
  };

  // Every piece of [begin, end), cut so that no piece straddles the borders.
  template <class F>
  void each(std::uint64_t begin, std::uint64_t end, F&& f) {
    if (begin == end) return;
    cut(begin);
    cut(end);
    auto it = pieces_.lower_bound(begin);
    std::uint64_t at = begin;
    while (at < end) {
      if (it == pieces_.end() || it->first > at) {
        const std::uint64_t gap_end = it == pieces_.end() ? end : std::min(end, it->first);
        it = pieces_.emplace_hint(it, at, Touched{.end = gap_end});
      }
      f(it->second);
      at = it->second.end;
      ++it;
    }
  }

  void write(std::uint64_t begin, std::uint64_t end, Lane lane, std::uint32_t count) {
    if (begin == end) return;
    cut(begin);  // again: one instruction may name the same bytes twice, as a whole and in parts
    cut(end);
    pieces_.erase(pieces_.lower_bound(begin), pieces_.lower_bound(end));
    pieces_[begin] = {.end = end, .writer = lane, .write_count = count};
  }

 private:
  void cut(std::uint64_t at) {
    auto it = pieces_.upper_bound(at);
    if (it == pieces_.begin()) return;
    --it;
    if (it->first == at || it->second.end <= at) return;
    Touched right = it->second;
    it->second.end = at;
    pieces_.emplace(at, right);
  }

  std::map<std::uint64_t, Touched> pieces_;
};

// Bytes of a tier that instructions of other lanes than compute touch.
class Shared {
 public:
  void add(std::uint64_t begin, std::uint64_t end) {
    if (begin < end) ranges_.push_back({begin, end});
  }
  void sort() {
    std::ranges::sort(ranges_);
    std::size_t kept = 0;
    for (const auto& [begin, end] : ranges_) {
      if (kept > 0 && begin <= ranges_[kept - 1].second) {
        ranges_[kept - 1].second = std::max(ranges_[kept - 1].second, end);
      } else {
        ranges_[kept++] = {begin, end};
      }
    }
    ranges_.resize(kept);
  }
  bool any_of(std::uint64_t begin, std::uint64_t end) const {
    const auto behind = std::ranges::upper_bound(ranges_, begin, {},
                                                 &std::pair<std::uint64_t, std::uint64_t>::second);
    return behind != ranges_.end() && behind->first < end;
  }

 private:
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges_;  // once sorted they are apart
};

}  // namespace

Waits derive_waits(const ProgramSet& set, int program, const std::vector<std::uint64_t>& offset) {
  const auto& code = set.programs[static_cast<std::size_t>(program)].instructions;
  Waits waits;
  waits.begin.reserve(code.size() + 1);
  waits.begin.push_back(0);
  std::array<ByteHistory, kTiers.size()> history;
  std::array<Counts, kLaneCount> known{};  // by lane: what it has already waited for
  Counts issued{};
  struct Place {
    Tier tier;
    std::uint64_t begin, end;
  };
  const auto place_of = [&](Buffer b) {
    const BufferSpec& s = set.buffers[b.id];
    const std::uint64_t begin = offset[s.root.id] + s.offset;
    return Place{s.tier, begin, begin + s.bytes};
  };
  // Nobody waits for what the program only reads: most of it is weights. Nor for what only the
  // compute lane touches, whose instructions run in order: most of it is activations.
  std::vector<bool> written(set.buffers.size(), false);
  std::array<Shared, kTiers.size()> shared;
  for (const Instruction& ins : code) {
    for (const Buffer b : ins.writes) written[set.buffers[b.id].root.id] = true;
    if (ins.lane == Lane::compute) continue;
    for (const auto* touched : {&ins.reads, &ins.writes}) {
      for (const Buffer b : *touched) {
        const Place p = place_of(b);
        shared[static_cast<std::size_t>(p.tier)].add(p.begin, p.end);
      }
    }
  }
  for (Shared& s : shared) s.sort();
  // By root: whether another lane may touch any of its bytes. Looked up for most operands.
  enum : std::uint8_t { unknown, apart, touched_too };
  std::vector<std::uint8_t> beside(set.buffers.size(), unknown);
  const auto compute_alone = [&](Buffer root) {
    std::uint8_t& is = beside[root.id];
    if (is == unknown) {
      const Place p = place_of(root);
      is = shared[static_cast<std::size_t>(p.tier)].any_of(p.begin, p.end) ? touched_too : apart;
    }
    return is == apart;
  };
  for (const Instruction& ins : code) {
    Counts need{};
    const std::uint32_t mine = ++issued[static_cast<std::size_t>(ins.lane)];
    const auto after = [&](Lane lane, std::uint32_t count) {
      auto& n = need[static_cast<std::size_t>(lane)];
      n = std::max(n, count);
    };
    // visit(buffer, history, begin, end) for what another lane may touch as well.
    const auto each_shared = [&](const std::vector<Buffer>& touched, auto&& visit) {
      for (const Buffer b : touched) {
        if (ins.lane == Lane::compute && compute_alone(set.buffers[b.id].root)) continue;
        const Place p = place_of(b);
        const auto tier = static_cast<std::size_t>(p.tier);
        if (ins.lane == Lane::compute && !shared[tier].any_of(p.begin, p.end)) continue;
        visit(b, history[tier], p.begin, p.end);
      }
    };
    each_shared(ins.writes,
                [&](Buffer, ByteHistory& bytes, std::uint64_t begin, std::uint64_t end) {
                  bytes.each(begin, end, [&](ByteHistory::Touched& t) {
                    after(t.writer, t.write_count);
                    for (int l = 0; l < kLaneCount; ++l) {
                      after(static_cast<Lane>(l), t.read_counts[static_cast<std::size_t>(l)]);
                    }
                  });
                });
    each_shared(ins.reads,
                [&](Buffer b, ByteHistory& bytes, std::uint64_t begin, std::uint64_t end) {
                  if (!written[set.buffers[b.id].root.id]) return;
                  bytes.each(begin, end, [&](ByteHistory::Touched& t) {
                    after(t.writer, t.write_count);
                    t.read_counts[static_cast<std::size_t>(ins.lane)] = mine;
                  });
                });
    each_shared(ins.writes, [&](Buffer, ByteHistory& bytes, std::uint64_t begin,
                                std::uint64_t end) { bytes.write(begin, end, ins.lane, mine); });
    Counts& already = known[static_cast<std::size_t>(ins.lane)];
    for (int l = 0; l < kLaneCount; ++l) {
      const auto i = static_cast<std::size_t>(l);
      if (static_cast<Lane>(l) == ins.lane || need[i] <= already[i]) continue;
      already[i] = need[i];
      waits.all.push_back({static_cast<Lane>(l), need[i]});
    }
    waits.begin.push_back(static_cast<std::uint32_t>(waits.all.size()));
  }
  return waits;
}

}  // namespace ballast
