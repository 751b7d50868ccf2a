// The hands of a lane: what the parts of its instructions wait for, and who is told that one is
// done.

#include <algorithm>

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

// What the hands of a lane take, and what each part has to wait for of those before it. Parts of
// one instruction do not wait for each other.
void Runner::order_hands(LaneState& lane, std::size_t program) const {
  if (lane.hands.size() == 1) return;
  const auto& all = set_.programs[program].instructions;
  auto& parts = lane.parts[program];
  for (const std::uint32_t i : lane.code[program]) {
    for (std::uint32_t p = 0; p < all[i].parts; ++p) parts.push_back({i, p});
    lane.parts_until[program].push_back(static_cast<std::uint32_t>(parts.size()));
  }
  for (std::uint32_t n = 0; n < parts.size(); ++n) {
    const std::uint32_t mine = parts[n].instruction;
    const auto apart = [&](std::uint32_t other) {
      return other == mine || !share_bytes(all[other], all[mine]);
    };
    const std::uint32_t first = n + 1 - std::min(n + 1, kSideBySide);
    std::uint32_t after = n;
    while (after > first && apart(parts[after - 1].instruction)) --after;
    lane.after[program].push_back(after);
  }
}

// Others wait for whole instructions, so nobody is woken for each of thousands of parts a second.
void Runner::finish(LaneState& lane, int program, std::uint32_t place) {
  const auto& parts = lane.parts[static_cast<std::size_t>(program)];
  {
    const std::lock_guard lock(mutex_);
    lane.finished[place % kSideBySide] = true;
    std::uint32_t done = lane.done.load(std::memory_order_relaxed);
    bool tell = lane.hand_waits;
    for (; lane.finished[done % kSideBySide]; ++done) {
      lane.finished[done % kSideBySide] = false;
      tell |= done + 1 == parts.size() || parts[done].instruction != parts[done + 1].instruction;
    }
    lane.done.store(done, std::memory_order_release);
    if (!tell) return;
  }
  progress_.notify_all();
}

bool Runner::wait_for_parts(LaneState& lane, int program, std::uint32_t place) {
  const std::uint32_t least = lane.after[static_cast<std::size_t>(program)][place];
  if (lane.done.load(std::memory_order_acquire) >= least) return true;
  lane.hand_waits = true;
  const bool goes_on = wait_for(lane.done, least);
  lane.hand_waits = false;
  return goes_on;
}

}  // namespace ballast
