#include "plan/waits.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <utility>

#include "core/to_size.h"

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

 private:
  using Pieces = std::map<std::uint64_t, Touched>;

  // The first piece that ends behind `at`.
  template <class Map>
  static auto first_of(Map& pieces, std::uint64_t at) {
    auto it = pieces.upper_bound(at);
    if (it == pieces.begin()) return it;
    const auto before = std::prev(it);
    return before->second.end > at ? before : it;
  }

  // In two; the right one.
  Pieces::iterator cut(Pieces::iterator piece, std::uint64_t at) {
    const Touched right = piece->second;
    piece->second.end = at;
    return pieces_.emplace_hint(std::next(piece), at, right);
  }

 public:
  // f(what is known) for all that any byte of [begin, end) is part of.
  template <class F>
  void each(std::uint64_t begin, std::uint64_t end, F&& f) const {
    if (begin == end) return;
    for (auto it = first_of(pieces_, begin); it != pieces_.end() && it->first < end; ++it) {
      f(it->second);
    }
  }

  // The same for a reader, which is noted.
  template <class F>
  void read(std::uint64_t begin, std::uint64_t end, Lane lane, std::uint32_t count, F&& f) {
    if (begin == end) return;
    auto it = first_of(pieces_, begin);
    if (it != pieces_.end() && it->first < begin) it = cut(it, begin);
    for (std::uint64_t at = begin; at < end; ++it) {
      if (it == pieces_.end() || it->first > at) {  // nobody has touched these
        const std::uint64_t gap_end = it == pieces_.end() ? end : std::min(end, it->first);
        it = pieces_.emplace_hint(it, at, Touched{.end = gap_end});
      } else if (it->second.end > end) {
        it = std::prev(cut(it, end));
      }
      f(it->second);
      it->second.read_counts[to_size(lane)] = count;
      at = it->second.end;
    }
  }

  void write(std::uint64_t begin, std::uint64_t end, Lane lane, std::uint32_t count) {
    if (begin == end) return;
    auto it = first_of(pieces_, begin);
    if (it != pieces_.end() && it->first < begin) it = cut(it, begin);
    const Touched now = {.end = end, .writer = lane, .write_count = count};
    if (it != pieces_.end() && it->first == begin && it->second.end == end) {  // mostly
      it->second = now;
      return;
    }
    while (it != pieces_.end() && it->first < end) {
      if (it->second.end > end) cut(it, end);
      it = pieces_.erase(it);
    }
    pieces_.emplace_hint(it, begin, now);
  }

 private:
  Pieces pieces_;
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

struct Place {
  std::uint64_t begin, end;
  std::uint32_t root;
  Tier tier;
};

// Where each buffer is, root or view.
std::vector<Place> places_of(const ProgramSet& set, const std::vector<std::uint64_t>& offset) {
  std::vector<Place> all;
  all.reserve(set.buffers.size());
  for (const BufferSpec& s : set.buffers) {
    const std::uint64_t begin = offset[s.root.id] + s.offset;
    all.push_back({begin, begin + s.bytes, s.root.id, s.tier});
  }
  return all;
}

// By buffer, for the program at work: marks of an earlier one have its number, of which there may
// be many.
struct Marks {
  explicit Marks(std::size_t buffers) : written(buffers, 0), beside(buffers, 0) {}

  std::uint32_t program = 0;           // counts from 1
  std::vector<std::uint32_t> written;  // roots: by the program with this number
  // Whether another lane may touch any of its bytes: twice the program's number, and one more if.
  std::vector<std::uint32_t> beside;
};

Waits waits_of(const Program& program, const std::vector<Place>& places, Marks& marks) {
  const auto& code = program.instructions;
  const std::uint32_t now = ++marks.program;
  Waits waits;
  waits.begin.reserve(code.size() + 1);
  waits.begin.push_back(0);
  std::array<ByteHistory, kTiers.size()> history;
  std::array<Counts, kLaneCount> known{};  // by lane: what it has already waited for
  Counts issued{};
  // Nobody waits for what the program only reads: most of it is weights. Nor for what only the
  // compute lane touches, whose instructions run in order: most of it is activations.
  std::array<Shared, kTiers.size()> shared;
  for (const Instruction& ins : code) {
    for (const Buffer b : ins.writes) marks.written[places[b.id].root] = now;
    if (ins.lane == Lane::compute) continue;
    for (const auto* touched : {&ins.reads, &ins.writes}) {
      for (const Buffer b : *touched) {
        const Place& p = places[b.id];
        shared[to_size(p.tier)].add(p.begin, p.end);
      }
    }
  }
  for (Shared& s : shared) s.sort();
  const auto beside = [&](std::uint32_t id) {
    std::uint32_t& is = marks.beside[id];
    if (is / 2 != now) {
      const Place& p = places[id];
      is = 2 * now + shared[to_size(p.tier)].any_of(p.begin, p.end);
    }
    return is % 2 == 1;
  };
  // Most roots are nobody else's, and then their views need not be looked at.
  const auto compute_alone = [&](Buffer b) { return !beside(places[b.id].root) || !beside(b.id); };
  std::vector<const Place*> reads, writes;  // what another lane may touch as well
  for (const Instruction& ins : code) {
    const std::uint32_t mine = ++issued[to_size(ins.lane)];
    const auto collect = [&](const auto& touched, std::vector<const Place*>& all) {
      all.clear();
      for (const Buffer b : touched) {
        if (ins.lane != Lane::compute || !compute_alone(b)) all.push_back(&places[b.id]);
      }
    };
    collect(ins.reads, reads);
    collect(ins.writes, writes);
    if (reads.empty() && writes.empty()) {
      waits.begin.push_back(static_cast<std::uint32_t>(waits.all.size()));
      continue;
    }
    Counts need{};
    const auto after = [&](Lane lane, std::uint32_t count) {
      auto& n = need[to_size(lane)];
      n = std::max(n, count);
    };
    const auto bytes_of = [&](const Place* p) -> ByteHistory& { return history[to_size(p->tier)]; };
    for (const Place* p : writes) {
      bytes_of(p).each(p->begin, p->end, [&](const ByteHistory::Touched& t) {
        after(t.writer, t.write_count);
        for (int l = 0; l < kLaneCount; ++l) {
          after(static_cast<Lane>(l), t.read_counts[to_size(l)]);
        }
      });
    }
    for (const Place* p : reads) {
      if (marks.written[p->root] != now) continue;
      bytes_of(p).read(p->begin, p->end, ins.lane, mine,
                       [&](const ByteHistory::Touched& t) { after(t.writer, t.write_count); });
    }
    for (const Place* p : writes) bytes_of(p).write(p->begin, p->end, ins.lane, mine);
    Counts& already = known[to_size(ins.lane)];
    for (int l = 0; l < kLaneCount; ++l) {
      const auto i = to_size(l);
      if (static_cast<Lane>(l) == ins.lane || need[i] <= already[i]) continue;
      already[i] = need[i];
      waits.all.push_back({static_cast<Lane>(l), need[i]});
    }
    waits.begin.push_back(static_cast<std::uint32_t>(waits.all.size()));
  }
  return waits;
}

}  // namespace

Waits derive_waits(const ProgramSet& set, int program, const std::vector<std::uint64_t>& offset) {
  Marks marks(set.buffers.size());
  return waits_of(set.programs[to_size(program)], places_of(set, offset), marks);
}

std::vector<Waits> derive_waits(const ProgramSet& set, const std::vector<std::uint64_t>& offset) {
  const std::vector<Place> places = places_of(set, offset);
  Marks marks(set.buffers.size());
  std::vector<Waits> all;
  for (const Program& p : set.programs) all.push_back(waits_of(p, places, marks));
  return all;
}

}  // namespace ballast
