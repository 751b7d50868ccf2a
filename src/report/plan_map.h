#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "plan/memory_plan.h"
#include "plan/predict.h"
#include "plan/program.h"

namespace ballast {

// A program of a plan as shapes: address against time, and lanes against time.

// Buffers that lie side by side or follow each other, mostly one. Names are the program set's.
struct MapBlock {
  std::uint64_t offset = 0, extent = 0;  // in the arena
  std::uint64_t bytes = 0;               // of the buffers, without what lies between them
  double begin = 0, end = 0;             // seconds
  std::uint32_t first = 0, last = 0;     // instructions that use it, both included
  std::uint32_t count = 1;               // buffers
  Role role = Role::activation;
  bool stays = false;  // from before the program until after it
  std::string_view name;
};

// Work of one lane, mostly one instruction.
struct MapBar {
  double begin = 0, end = 0;
  std::uint32_t count = 1;  // instructions
  Lane lane = Lane::compute;
  std::string_view name;
};

struct TierMap {
  std::vector<MapBlock> blocks;
  std::uint64_t live = 0;     // most bytes alive at once
  std::uint32_t live_at = 0;  // the first instruction where they are
  std::uint64_t hidden = 0;   // buffers too small and short to be drawn
};

struct ProgramMap {
  int program = 0;
  double seconds = 0;
  std::array<TierMap, kTiers.size()> tiers;
  std::vector<MapBar> bars;
};

// Without a prediction an instruction is a second.
Timeline even_timeline(std::size_t instructions);

// Every buffer and every instruction. What stays is joined by role and model part: "blocks.3".
ProgramMap map_program(const ProgramSet& set, const MemoryPlan& plan, int program,
                       const Timeline& timeline);

// Joins neighbours of one role, the short-lived first, until there are at most so many blocks in
// all tiers together, and so many bars. What is drawn still covers all that is alive; where that is
// not enough, the smallest are left out and counted.
void simplify(ProgramMap& map, std::size_t max_blocks, std::size_t max_bars);

}  // namespace ballast
