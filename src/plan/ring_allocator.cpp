#include "plan/ring_allocator.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/error.h"
#include "core/to_size.h"
#include "plan/phase.h"

namespace ballast {

RingAllocator::RingAllocator(const ProgramSet& set, const MemoryPlan& plan) {
  for (const std::vector<Buffer>& ring : set.rings) {
    const auto begin = static_cast<std::uint32_t>(buffers_.size());
    const BufferSpec& first = set.spec(ring.at(0));
    for (const Buffer b : ring) {
      const BufferSpec& s = set.spec(b);
      check(s.root == b && s.role == Role::staging && outlives_program(s) && s.tier == Tier::host &&
                s.bytes == first.bytes && s.alignment == first.alignment,
            "{} {} is no buffer of a ring", set.name(b), s.shape);
      buffers_.push_back(b);
      places_.push_back({.offset = plan.offset[b.id]});
    }
    rings_.push_back({begin, static_cast<std::uint32_t>(buffers_.size())});
  }
  for (const Program& p : set.programs) fills_.push_back(fills_of(set, p));
}

std::uint32_t RingAllocator::index_of(Buffer root) const {
  return static_cast<std::uint32_t>(std::ranges::find(buffers_, root) - buffers_.begin());
}

std::uint64_t RingAllocator::offset(Buffer root, std::uint64_t planned) const {
  const std::uint32_t n = index_of(root);
  return n < places_.size() ? places_[n].offset : planned;
}

// What the disk lane fills from its first byte on, once, and one other instruction empties. Where a
// program uses a ring in another way (state that is written to disk is put there by another lane),
// its buffers stay where they are.
std::vector<RingAllocator::Fill> RingAllocator::fills_of(const ProgramSet& set,
                                                         const Program& program) const {
  constexpr std::size_t kNone = ~std::size_t{0};
  std::vector<Fill> fills;
  std::vector<std::size_t> last(buffers_.size(), kNone);  // by buffer, of fills
  std::vector<bool> fixed(buffers_.size(), false);
  std::array<std::uint32_t, kLaneCount> count{};
  for (std::uint32_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& ins = program.instructions[i];
    const Wait done = {ins.lane, ++count[to_size(ins.lane)]};
    const auto each = [&](const BufferList& touched, const auto& f) {
      for (const Buffer b : touched) {
        const BufferSpec& s = set.spec(b);
        if (s.role != Role::staging) continue;
        if (const std::uint32_t n = index_of(s.root); n < buffers_.size()) f(n, s.offset);
      }
    };
    const auto is_full = [&](std::uint32_t buffer) {
      return last[buffer] != kNone && fills[last[buffer]].emptied.count == 0;
    };
    each(ins.writes, [&](std::uint32_t buffer, std::uint64_t offset) {
      bool reads_too = false;
      each(ins.reads, [&](std::uint32_t other, std::uint64_t) { reads_too |= other == buffer; });
      if (reads_too) return;
      fixed[buffer] = fixed[buffer] || ins.lane != Lane::disk || offset != 0 || is_full(buffer);
      last[buffer] = fills.size();
      fills.push_back({i, buffer, {}});
    });
    each(ins.reads, [&](std::uint32_t buffer, std::uint64_t) {
      if (is_full(buffer)) {
        fills[last[buffer]].emptied = done;
      } else {
        fixed[buffer] = true;
      }
    });
  }
  for (const Ring& r : rings_) {
    const auto first = fixed.begin() + r.begin, end = fixed.begin() + r.end;
    if (std::find(first, end, true) != end) std::fill(first, end, true);
  }
  std::erase_if(fills, [&](const Fill& f) { return fixed[f.buffer]; });
  return fills;
}

void RingAllocator::begin(int program) {
  next_ = 0;
  if (fills_[to_size(program)].empty()) return;
  for (Place& p : places_) p.used = false;
}

void RingAllocator::before(int program, std::uint32_t instruction,
                           const std::function<bool(const Wait&)>& passed) {
  const auto& fills = fills_[to_size(program)];
  for (; next_ < fills.size() && fills[next_].instruction == instruction; ++next_) {
    fill(fills[next_], passed);
  }
}

// They are emptied in the order of their fills, or nearly: behind one that is not, nobody is asked
// about, since asking the GPU about all of a large ring would take longer than reading.
void RingAllocator::record_emptied(const Ring& ring,
                                   const std::function<bool(const Wait&)>& passed) {
  for (;;) {
    Place* oldest = nullptr;
    for (std::uint32_t b = ring.begin; b < ring.end; ++b) {
      Place& p = places_[b];
      if (!p.used || p.emptied.count == 0) continue;
      if (!oldest || p.filled < oldest->filled) oldest = &p;
    }
    if (!oldest || !passed(oldest->emptied)) return;
    oldest->used = false;
  }
}

void RingAllocator::fill(const Fill& f, const std::function<bool(const Wait&)>& passed) {
  Place& mine = places_[f.buffer];
  mine.used = false;  // the plan has waited for it
  // The first time round all of it is used, as planned: what a run has touched depends on no clock.
  if (mine.filled > 0) {
    const Ring& ring =
        *std::ranges::find_if(rings_, [&](const Ring& r) { return f.buffer < r.end; });
    record_emptied(ring, passed);
    Place* last = &mine;
    for (std::uint32_t b = ring.begin; b < ring.end; ++b) {
      if (!places_[b].used && places_[b].filled > last->filled) last = &places_[b];
    }
    std::swap(mine, *last);
  }
  mine.filled = ++filled_;
  mine.used = true;
  mine.emptied = f.emptied;
}

}  // namespace ballast
