#include "plan/lane_schedule.h"

#include <algorithm>

namespace ballast {
namespace {

// Where one of them writes what the other reads or writes.
bool share_bytes(const ProgramSet& set, const MemoryPlan& plan, const Instruction& a,
                 const Instruction& b) {
  const auto meet = [&](const auto& some, const auto& others) {
    return std::ranges::any_of(some, [&](Buffer x) {
      const BufferSpec& sx = set.spec(x);
      const std::uint64_t begin = plan.offset[sx.root.id] + sx.offset;
      return std::ranges::any_of(others, [&](Buffer y) {
        const BufferSpec& sy = set.spec(y);
        const std::uint64_t other = plan.offset[sy.root.id] + sy.offset;
        return sx.tier == sy.tier && begin < other + sy.bytes && other < begin + sx.bytes;
      });
    });
  };
  return meet(a.writes, b.reads) || meet(a.writes, b.writes) || meet(a.reads, b.writes);
}

// What the workers of a lane take, and what each part has to wait for of those before it: the last
// instruction that shares bytes with its own, and no more than the lane keeps account of.
void order_workers(const ProgramSet& set, const MemoryPlan& plan, LaneSchedule& lane,
                   std::size_t program) {
  const auto& all = set.programs[program].instructions;
  const auto& code = lane.code[program];
  auto& parts = lane.parts[program];
  auto& until = lane.parts_until[program];
  const auto oldest_of = [](std::size_t n) {
    return n - std::min<std::size_t>(n, kReorderWindow - 1);
  };
  for (std::size_t k = 0; k < code.size(); ++k) {
    const Instruction& mine = all[code[k]];
    const std::size_t oldest = oldest_of(parts.size());
    std::size_t other = k;
    while (other > 0 && until[other - 1] > oldest &&
           !share_bytes(set, plan, all[code[other - 1]], mine)) {
      --other;
    }
    const std::size_t shared = other > 0 ? until[other - 1] : 0;
    for (std::uint32_t p = 0; p < mine.splits; ++p) {
      lane.after[program].push_back(
          static_cast<std::uint32_t>(std::max(shared, oldest_of(parts.size()))));
      parts.push_back({code[k], p});
    }
    until.push_back(static_cast<std::uint32_t>(parts.size()));
  }
}

}  // namespace

LaneSchedules::LaneSchedules(const ProgramSet& set, const MemoryPlan& plan, int disk_readers) {
  const std::size_t programs = set.programs.size();
  for (LaneSchedule& lane : lanes_) {
    lane.code.resize(programs);
    lane.parts.resize(programs);
    lane.parts_until.resize(programs);
    lane.after.resize(programs);
    lane.awaited.resize(programs);
  }
  LaneSchedule& disk = lanes_[to_size(Lane::disk)];
  std::size_t max_splits = 1;  // that a program has for the disk lane
  for (std::size_t p = 0; p < programs; ++p) {
    const auto& code = set.programs[p].instructions;
    for (std::uint32_t i = 0; i < code.size(); ++i) {
      lanes_[to_size(code[i].lane)].code[p].push_back(i);
    }
    std::size_t parts = 0;
    for (const std::uint32_t i : disk.code[p]) parts += code[i].splits;
    max_splits = std::max(max_splits, parts);
    for (LaneSchedule& lane : lanes_) lane.awaited[p].resize(lane.code[p].size());
    for (const Wait& w : plan.waits[p].all) {
      lanes_[to_size(w.lane)].awaited[p][w.count - 1] = true;
    }
  }
  disk.workers = std::min({max_splits, to_size(std::max(1, disk_readers)), kMaxWorkers});
  for (std::size_t p = 0; disk.several() && p < programs; ++p) order_workers(set, plan, disk, p);
}

bool LaneSchedules::used(Lane l) const {
  return std::ranges::any_of((*this)[l].code, [](const auto& code) { return !code.empty(); });
}

}  // namespace ballast
