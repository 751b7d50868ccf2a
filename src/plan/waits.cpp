#include "plan/waits.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
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

}  // namespace

Waits derive_waits(const ProgramSet& set, int program, const std::vector<std::uint64_t>& offset) {
  const auto& code = set.programs[static_cast<std::size_t>(program)].instructions;
  Waits waits;
  waits.begin.reserve(code.size() + 1);
  waits.begin.push_back(0);
  std::array<ByteHistory, kTiers.size()> history;
  std::array<Counts, kLaneCount> known{};  // by lane: what it has already waited for
  Counts issued{};
  // Nobody waits for what the program only reads: most of it is weights.
  std::vector<bool> written(set.buffers.size(), false);
  for (const Instruction& ins : code) {
    for (const Buffer b : ins.writes) written[set.spec(b).root.id] = true;
  }
  for (const Instruction& ins : code) {
    Counts need{};
    const std::uint32_t mine = ++issued[static_cast<std::size_t>(ins.lane)];
    const auto after = [&](Lane lane, std::uint32_t count) {
      auto& n = need[static_cast<std::size_t>(lane)];
      n = std::max(n, count);
    };
    const auto range = [&](Buffer b) {
      const BufferSpec& s = set.spec(b);
      const std::uint64_t begin = offset[s.root.id] + s.offset;
      return std::tuple<ByteHistory&, std::uint64_t, std::uint64_t>(
          history[static_cast<std::size_t>(s.tier)], begin, begin + s.bytes);
    };
    for (const Buffer b : ins.writes) {
      auto [bytes, begin, end] = range(b);
      bytes.each(begin, end, [&](ByteHistory::Touched& t) {
        after(t.writer, t.write_count);
        for (int l = 0; l < kLaneCount; ++l) {
          after(static_cast<Lane>(l), t.read_counts[static_cast<std::size_t>(l)]);
        }
      });
    }
    for (const Buffer b : ins.reads) {
      if (!written[set.spec(b).root.id]) continue;
      auto [bytes, begin, end] = range(b);
      bytes.each(begin, end, [&](ByteHistory::Touched& t) {
        after(t.writer, t.write_count);
        t.read_counts[static_cast<std::size_t>(ins.lane)] = mine;
      });
    }
    for (const Buffer b : ins.writes) {
      auto [bytes, begin, end] = range(b);
      bytes.write(begin, end, ins.lane, mine);
    }
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
