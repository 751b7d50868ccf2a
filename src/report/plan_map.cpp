#include "report/plan_map.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "core/to_size.h"
#include "plan/phase.h"

namespace ballast {
namespace {

// "blocks.3" of "blocks.3.ffn.0.weight"
std::string_view part_name(std::string_view name) {
  const std::size_t first = name.find('.');
  return first == name.npos ? name : name.substr(0, name.find('.', first + 1));
}

constexpr std::uint64_t kTouching = 4096;  // alignment leaves less than this between neighbours

bool touch(const MapBlock& a, const MapBlock& b) {
  const std::uint64_t end = a.offset + a.extent;
  return b.offset >= a.offset && b.offset <= end + kTouching;
}

void join_block(MapBlock& a, const MapBlock& b) {
  const std::uint64_t end = std::max(a.offset + a.extent, b.offset + b.extent);
  a.offset = std::min(a.offset, b.offset);
  a.extent = end - a.offset;
  a.bytes += b.bytes;
  a.begin = std::min(a.begin, b.begin);
  a.end = std::max(a.end, b.end);
  a.first = std::min(a.first, b.first);
  a.last = std::max(a.last, b.last);
  a.count += b.count;
}

// Neighbours in the order of `key` become one where `joins` says so.
template <class T, class Key, class Joins, class Join>
void join_neighbours(std::vector<T>& all, Key&& key, Joins&& joins, Join&& join) {
  std::ranges::stable_sort(all, {}, key);
  std::vector<T> kept;
  for (const T& t : all) {
    if (!kept.empty() && joins(kept.back(), t)) {
      join(kept.back(), t);
    } else {
      kept.push_back(t);
    }
  }
  all = std::move(kept);
}

// What the run or the program's phase keeps is there all the time.
void add_kept(const ProgramSet& set, const MemoryPlan& plan, int phase_owner, std::uint32_t last,
              ProgramMap& map) {
  for (std::uint32_t i = 0; i < set.buffers.size(); ++i) {
    const BufferSpec& s = set.buffers[i];
    if (s.root.id != i || s.bytes == 0) continue;
    if (s.program != kPersistent && s.program != phase_owner) continue;
    map.tiers[to_size(s.tier)].blocks.push_back({.offset = plan.offset[i],
                                                 .extent = s.bytes,
                                                 .bytes = s.bytes,
                                                 .end = map.seconds,
                                                 .last = last,
                                                 .role = s.role,
                                                 .stays = true,
                                                 .name = s.name});
  }
  for (TierMap& tier : map.tiers) {
    join_neighbours(
        tier.blocks, [](const MapBlock& b) { return b.offset; },
        [](const MapBlock& a, const MapBlock& b) {
          return a.role == b.role && part_name(a.name) == part_name(b.name) && touch(a, b);
        },
        [](MapBlock& a, const MapBlock& b) {
          join_block(a, b);
          a.name = part_name(a.name);
        });
  }
}

void find_most_alive(TierMap& tier, std::size_t instructions) {
  std::vector<std::int64_t> change(instructions + 1, 0);
  for (const MapBlock& b : tier.blocks) {
    change[b.first] += static_cast<std::int64_t>(b.bytes);
    change[b.last + 1] -= static_cast<std::int64_t>(b.bytes);
  }
  std::int64_t live = 0;
  for (std::uint32_t i = 0; i < instructions; ++i) {
    live += change[i];
    if (static_cast<std::uint64_t>(live) > tier.live) {
      tier.live = static_cast<std::uint64_t>(live);
      tier.live_at = i;
    }
  }
}

std::size_t blocks_of(const ProgramMap& map) {
  return std::accumulate(map.tiers.begin(), map.tiers.end(), std::size_t{0},
                         [](std::size_t n, const TierMap& t) { return n + t.blocks.size(); });
}

// Blocks of one place that follow each other, then blocks of one time that lie side by side.
void join_blocks(std::vector<MapBlock>& blocks, double tick) {
  const auto at = [&](double seconds) { return std::floor(seconds / tick); };
  join_neighbours(
      blocks,
      [](const MapBlock& b) { return std::tuple(b.stays, b.role, b.offset, b.extent, b.begin); },
      [&](const MapBlock& a, const MapBlock& b) {
        return !a.stays && !b.stays && a.role == b.role && a.offset == b.offset &&
               a.extent == b.extent && b.begin <= a.end + tick;
      },
      join_block);
  join_neighbours(
      blocks,
      [&](const MapBlock& b) {
        return std::tuple(b.stays, b.role, at(b.begin), at(b.end), b.offset);
      },
      [&](const MapBlock& a, const MapBlock& b) {
        return !a.stays && !b.stays && a.role == b.role && at(a.begin) == at(b.begin) &&
               at(a.end) == at(b.end) && touch(a, b);
      },
      join_block);
}

void drop_smallest(std::vector<MapBlock>& blocks, std::uint64_t& hidden, std::size_t keep) {
  if (blocks.size() <= keep) return;
  std::ranges::stable_sort(blocks, std::greater(), [](const MapBlock& b) {
    return static_cast<double>(b.extent) * (b.end - b.begin);
  });
  for (std::size_t i = keep; i < blocks.size(); ++i) hidden += blocks[i].count;
  blocks.resize(keep);
}

}  // namespace

Timeline even_timeline(std::size_t instructions) {
  Timeline t;
  for (std::size_t i = 0; i < instructions; ++i) {
    t.instructions.push_back({static_cast<double>(i), static_cast<double>(i + 1)});
  }
  return t;
}

ProgramMap map_program(const ProgramSet& set, const MemoryPlan& plan, int program,
                       const Timeline& timeline) {
  const auto& code = set.programs[to_size(program)].instructions;
  ProgramMap map = {.program = program, .seconds = 0, .tiers = {}, .bars = {}};
  if (code.empty()) return map;
  for (const Timeline::Span& s : timeline.instructions) map.seconds = std::max(map.seconds, s.end);

  // Temporaries by id: from the first instruction that touches one to the end of whichever lasts.
  int phase = kPersistent;
  constexpr std::uint32_t kNone = ~0u;
  std::vector<std::uint32_t> index(set.buffers.size(), kNone);
  std::vector<std::pair<Tier, MapBlock>> temporaries;
  for (std::uint32_t i = 0; i < code.size(); ++i) {
    const Timeline::Span& span = timeline.instructions[i];
    map.bars.push_back(
        {.begin = span.begin, .end = span.end, .lane = code[i].lane, .name = code[i].name});
    const auto use = [&](Buffer b) {
      const std::uint32_t root = set.spec(b).root.id;
      const BufferSpec& s = set.buffers[root];
      if (belongs_to_phase(s)) phase = s.program;
      if (outlives_program(s) || s.bytes == 0) return;
      if (index[root] == kNone) {
        index[root] = static_cast<std::uint32_t>(temporaries.size());
        temporaries.push_back({s.tier,
                               {.offset = plan.offset[root],
                                .extent = s.bytes,
                                .bytes = s.bytes,
                                .begin = span.begin,
                                .end = span.end,
                                .first = i,
                                .last = i,
                                .role = s.role,
                                .name = s.name}});
      }
      MapBlock& block = temporaries[index[root]].second;
      block.last = i;
      block.begin = std::min(block.begin, span.begin);
      block.end = std::max(block.end, span.end);
    };
    for (const Buffer b : code[i].reads) use(b);
    for (const Buffer b : code[i].writes) use(b);
  }
  add_kept(set, plan, phase, static_cast<std::uint32_t>(code.size() - 1), map);
  for (auto& [tier, block] : temporaries) map.tiers[to_size(tier)].blocks.push_back(block);
  for (TierMap& tier : map.tiers) find_most_alive(tier, code.size());
  return map;
}

void simplify(ProgramMap& map, std::size_t max_blocks, std::size_t max_bars) {
  // From a tick that nobody sees to one that a wide screen shows.
  for (double tick = map.seconds / 16384; blocks_of(map) > max_blocks && tick < map.seconds / 100;
       tick *= 2) {
    for (TierMap& tier : map.tiers) join_blocks(tier.blocks, tick);
  }
  const std::size_t left = blocks_of(map);
  for (TierMap& tier : map.tiers) {
    drop_smallest(tier.blocks, tier.hidden,
                  left <= max_blocks ? left : tier.blocks.size() * max_blocks / left);
  }
  for (double tick = map.seconds / 16384; map.bars.size() > max_bars && tick < map.seconds;
       tick *= 2) {
    join_neighbours(
        map.bars, [](const MapBar& b) { return std::tuple(b.lane, b.begin); },
        [&](const MapBar& a, const MapBar& b) {
          return a.lane == b.lane && b.begin - a.end < tick && b.end - a.begin < 2 * tick;
        },
        [](MapBar& a, const MapBar& b) {
          a.end = std::max(a.end, b.end);
          a.count += b.count;
        });
  }
  std::ranges::stable_sort(map.bars, {},
                           [](const MapBar& b) { return std::tuple(b.begin, b.lane); });
  for (TierMap& tier : map.tiers) {
    std::ranges::stable_sort(tier.blocks, {},
                             [](const MapBlock& b) { return std::tuple(b.begin, b.offset); });
  }
}

}  // namespace ballast
