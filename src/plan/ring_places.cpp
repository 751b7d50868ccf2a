#include "plan/ring_places.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/error.h"
#include "plan/phase.h"

namespace ballast {

RingPlaces::RingPlaces(const ProgramSet& set, const MemoryPlan& plan) {
  for (const std::vector<Buffer>& ring : set.rings) {
    const auto begin = static_cast<std::uint32_t>(buffers_.size());
    for (const Buffer b : ring) {
      const BufferSpec& s = set.spec(b);
      check(s.root == b && s.role == Role::staging && outlives_program(s) &&
                s.bytes == set.spec(ring[0]).bytes && s.tier == set.spec(ring[0]).tier,
            "{} {} is no buffer of a ring", set.name(b), s.shape);
      buffers_.push_back(b);
      places_.push_back({.offset = plan.offset[b.id]});
    }
    rings_.push_back({begin, static_cast<std::uint32_t>(buffers_.size())});
  }
  for (const Program& p : set.programs) fills_.push_back(fills_of(set, p));
}

std::uint32_t RingPlaces::index_of(Buffer root) const {
  return static_cast<std::uint32_t>(std::ranges::find(buffers_, root) - buffers_.begin());
}

std::uint64_t RingPlaces::offset(Buffer root, std::uint64_t planned) const {
  const std::uint32_t n = index_of(root);
  return n < places_.size() ? places_[n].offset : planned;
}

// What the disk lane fills and one other instruction empties. Where a program uses a ring in
// another way (state that is written to disk is put there by another lane), its buffers stay where
// they are.
std::vector<RingPlaces::Fill> RingPlaces::fills_of(const ProgramSet& set,
                                                   const Program& program) const {
  constexpr std::size_t kNone = ~std::size_t{0};
  std::vector<Fill> fills;
  std::vector<std::size_t> last(buffers_.size(), kNone);  // by buffer, of fills
  std::vector<bool> fixed(buffers_.size(), false);
  std::array<std::uint32_t, kLaneCount> count{};
  for (std::uint32_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& ins = program.instructions[i];
    const Wait done = {ins.lane, ++count[static_cast<std::size_t>(ins.lane)]};
    const auto each = [&](const BufferList& touched, const auto& f) {
      for (const Buffer b : touched) {
        const BufferSpec& s = set.spec(b);
        if (s.role != Role::staging) continue;
        if (const std::uint32_t n = index_of(s.root); n < buffers_.size()) f(n);
      }
    };
    each(ins.writes, [&](std::uint32_t buffer) {
      bool reads_too = false;
      each(ins.reads, [&](std::uint32_t other) { reads_too |= other == buffer; });
      if (reads_too) return;
      if (ins.lane != Lane::disk) fixed[buffer] = true;
      last[buffer] = fills.size();
      fills.push_back({i, buffer, {}});
    });
    each(ins.reads, [&](std::uint32_t buffer) {
      if (last[buffer] == kNone || fills[last[buffer]].emptied.count > 0) {
        fixed[buffer] = true;
      } else {
        fills[last[buffer]].emptied = done;
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

void RingPlaces::begin(int program) {
  next_ = 0;
  if (fills_[static_cast<std::size_t>(program)].empty()) return;
  for (Place& p : places_) p.used = false;
}

void RingPlaces::before(int program, std::uint32_t instruction,
                        const std::function<bool(const Wait&)>& passed) {
  const auto& fills = fills_[static_cast<std::size_t>(program)];
  if (next_ == fills.size() || fills[next_].instruction != instruction) return;
  const Fill& fill = fills[next_++];
  Place& mine = places_[fill.buffer];
  mine.used = false;  // the plan has waited for it
  const Ring& ring =
      *std::ranges::find_if(rings_, [&](const Ring& r) { return fill.buffer < r.end; });
  Place* last = &mine;
  // The first time round all of it is used, as planned: what a run has touched depends on no clock.
  for (std::uint32_t b = mine.filled > 0 ? ring.begin : ring.end; b < ring.end; ++b) {
    Place& p = places_[b];
    if (p.used && p.emptied.count > 0 && passed(p.emptied)) p.used = false;
    if (!p.used && p.filled > last->filled) last = &p;
  }
  std::swap(mine, *last);
  mine.filled = ++filled_;
  mine.used = true;
  mine.emptied = fill.emptied;
}

}  // namespace ballast
