// The workers of a lane: what the parts of its instructions wait for, and who is told that one is
// done.

#include <algorithm>

#include "core/to_size.h"
#include "plan/runner.h"

namespace ballast {

// Where one of them writes what the other reads or writes.
bool Runner::share_bytes(const Instruction& a, const Instruction& b) const {
  const auto meet = [&](const auto& some, const auto& others) {
    return std::ranges::any_of(some, [&](Buffer x) {
      const BufferSpec& sx = set_.spec(x);
      const std::uint64_t begin = plan_.offset[sx.root.id] + sx.offset;
      return std::ranges::any_of(others, [&](Buffer y) {
        const BufferSpec& sy = set_.spec(y);
        const std::uint64_t other = plan_.offset[sy.root.id] + sy.offset;
        return sx.tier == sy.tier && begin < other + sy.bytes && other < begin + sx.bytes;
      });
    });
  };
  return meet(a.writes, b.reads) || meet(a.writes, b.writes) || meet(a.reads, b.writes);
}

// What the workers of a lane take, and what each part has to wait for of those before it: the last
// instruction that shares bytes with its own, and no more than the lane keeps account of.
void Runner::order_workers(LaneState& lane, std::size_t program) const {
  if (lane.workers.size() == 1) return;
  const auto& all = set_.programs[program].instructions;
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
    while (other > 0 && until[other - 1] > oldest && !share_bytes(all[code[other - 1]], mine)) {
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

// Others wait for whole instructions, so nobody is woken for each of thousands of parts a second.
void Runner::finish(LaneState& lane, int program, std::uint32_t place) {
  const auto& parts = lane.parts[to_size(program)];
  {
    const std::lock_guard lock(mutex_);
    lane.finished[place % kReorderWindow] = true;
    std::uint32_t done = lane.done.load(std::memory_order_relaxed);
    bool notify = lane.worker_waits;
    for (; lane.finished[done % kReorderWindow]; ++done) {
      lane.finished[done % kReorderWindow] = false;
      notify |= done + 1 == parts.size() || parts[done].instruction != parts[done + 1].instruction;
    }
    lane.done.store(done, std::memory_order_release);
    if (!notify) return;
  }
  progress_.notify_all();
}

bool Runner::wait_for_parts(LaneState& lane, int program, std::uint32_t place) {
  const std::uint32_t least = lane.after[to_size(program)][place];
  if (lane.done.load(std::memory_order_acquire) >= least) return true;
  lane.worker_waits = true;
  const bool goes_on = wait_for(lane.done, least);
  lane.worker_waits = false;
  return goes_on;
}

}  // namespace ballast
