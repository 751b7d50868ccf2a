#include "nn/prefetch_order.h"

#include <algorithm>

#include "core/error.h"
#include "core/to_size.h"

namespace ballast {
namespace {

struct Move {
  std::uint32_t begin, end;
  std::uint32_t to;  // before this instruction
};

Move moved(const Prefetch& b, std::uint32_t to) { return {b.begin, b.end, to}; }
Move prepared(const Prefetch& b, std::uint32_t to) { return {b.end, b.end + b.prepared, to}; }
std::uint32_t behind(const Prefetch& b) { return b.end + b.prepared; }

// What is in no move and not in `all` stays where it is; what is only in `all` is left out.
void move(Program& program, const std::vector<Prefetch>& all, std::vector<Move> moves) {
  std::ranges::stable_sort(moves, {}, &Move::to);
  std::vector<Instruction>& old = program.instructions;
  std::vector<bool> stays(old.size(), true);
  for (const Prefetch& b : all)
    std::fill(stays.begin() + b.begin, stays.begin() + behind(b), false);
  auto count = to_size(std::ranges::count(stays, true));
  for (const Move& m : moves) count += m.end - m.begin;
  std::vector<Instruction> code;
  code.reserve(count);  // programs are kept: no room for what is left out
  auto next = moves.begin();
  for (std::uint32_t i = 0; i <= old.size(); ++i) {
    for (; next != moves.end() && next->to == i; ++next) {
      for (std::uint32_t k = next->begin; k < next->end; ++k) code.push_back(std::move(old[k]));
    }
    if (i < old.size() && stays[i]) code.push_back(std::move(old[i]));
  }
  old = std::move(code);
}

// Something about the roots of all places that are filled, found by their ids: most operands of a
// program are none of them.
template <class T>
class ByRoot {
 public:
  ByRoot(const ProgramSet& set, const std::vector<Prefetch>& prefetches, const T& all) {
    std::uint32_t end = 0;
    first_ = ~0u;
    for (const Prefetch& b : prefetches) {
      const std::uint32_t root = set.spec(b.target).root.id;
      first_ = std::min(first_, root);
      end = std::max(end, root + 1);
    }
    if (prefetches.empty()) return;
    index_.resize(end - first_, kNone);
    for (const Prefetch& b : prefetches) {
      std::uint32_t& i = index_[set.spec(b.target).root.id - first_];
      if (i != kNone) continue;
      i = static_cast<std::uint32_t>(values_.size());
      values_.push_back(all);
    }
  }

  // Null: the root is no place's.
  T* find(Buffer root) {
    const std::uint32_t at = root.id - first_;  // huge where it is before the first
    return at < index_.size() && index_[at] != kNone ? &values_[index_[at]] : nullptr;
  }

 private:
  static constexpr std::uint32_t kNone = ~0u;
  std::uint32_t first_;
  std::vector<std::uint32_t> index_;
  std::vector<T> values_;
};

// For each byte of one buffer: the first instruction that may come behind its last use.
class FreeFrom {
 public:
  void used(std::uint64_t begin, std::uint64_t end, std::uint32_t free_from) {
    for (Piece& p : pieces_) {  // mostly the same matrix as before
      if (p.begin != begin || p.end != end) continue;
      p.at = free_from;
      return;
    }
    std::vector<Piece> kept;
    for (const Piece& p : pieces_) {
      if (p.begin < std::min(p.end, begin)) kept.push_back({p.begin, std::min(p.end, begin), p.at});
      if (std::max(p.begin, end) < p.end) kept.push_back({std::max(p.begin, end), p.end, p.at});
    }
    kept.push_back({begin, end, free_from});
    pieces_ = std::move(kept);
  }

  std::uint32_t of(std::uint64_t begin, std::uint64_t end) const {
    std::uint32_t at = 0;
    for (const Piece& p : pieces_) {
      if (p.begin < end && begin < p.end) at = std::max(at, p.at);
    }
    return at;
  }

 private:
  struct Piece {
    std::uint64_t begin, end;
    std::uint32_t at;
  };
  std::vector<Piece> pieces_;
};

}  // namespace

void prefetch_early(ProgramSet& set, std::size_t index, const std::vector<Prefetch>& prefetches) {
  if (prefetches.empty()) return;
  Program& program = set.programs[index];
  ByRoot<FreeFrom> targets(set, prefetches, {});
  // What is recorded before the first is wanted before it.
  const auto leading =
      std::ranges::find_if(prefetches, [](const Prefetch& b) { return b.begin < b.end; });
  const std::uint32_t first = leading == prefetches.end() ? 0 : leading->begin;
  std::vector<Move> moves;
  std::vector<const Prefetch*> unused;  // of those that prepare
  const auto over = [&](const Prefetch* b, const BufferSpec& s) {
    const BufferSpec& target = set.spec(b->target);
    return target.root == s.root && target.offset < s.offset + s.bytes &&
           s.offset < target.offset + target.bytes;
  };
  auto next = prefetches.begin();
  for (std::uint32_t i = 0; i < program.instructions.size();) {
    if (next != prefetches.end() && next->begin == i) {
      const BufferSpec& s = set.spec(next->target);
      FreeFrom& target = *targets.find(s.root);
      std::erase_if(unused, [&](const Prefetch* b) { return over(b, s); });
      if (next->begin < next->end) {
        const std::uint32_t to = std::max(first, target.of(s.offset, s.offset + s.bytes));
        moves.push_back(moved(*next, to));
        target.used(s.offset, s.offset + s.bytes, to);
      }
      if (next->prepared > 0) unused.push_back(&*next);
      i = behind(*next);
      ++next;
      continue;
    }
    const Instruction& ins = program.instructions[i++];
    for (const auto* touched : {&ins.reads, &ins.writes}) {
      for (const Buffer b : *touched) {
        const BufferSpec& s = set.spec(b);
        FreeFrom* const target = targets.find(s.root);
        if (!target) continue;
        target->used(s.offset, s.offset + s.bytes, i);
        std::erase_if(unused, [&](const Prefetch* waiting) {
          if (!over(waiting, s)) return false;
          moves.push_back(prepared(*waiting, i - 1));
          return true;
        });
      }
    }
  }
  move(program, prefetches, std::move(moves));
}

void prefetch_just_in_time(ProgramSet& set, std::size_t index, std::vector<Prefetch> prefetches,
                           int ahead) {
  check(ahead > 0, "{} places ahead", ahead);
  Program& program = set.programs[index];
  constexpr std::uint32_t kNever = ~0u;
  ByRoot<std::uint32_t> first_use(set, prefetches, kNever);
  auto next = prefetches.begin();
  for (std::uint32_t i = 0; i < program.instructions.size();) {
    if (next != prefetches.end() && next->begin == i) {
      i = behind(*next);
      ++next;
      continue;
    }
    for (const Buffer b : program.instructions[i].reads) {
      std::uint32_t* const found = first_use.find(set.spec(b).root);
      if (found) *found = std::min(*found, i);
    }
    ++i;
  }
  const std::vector<Prefetch> all = prefetches;
  const auto used_at = [&](const Prefetch& b) { return *first_use.find(set.spec(b.target).root); };
  std::erase_if(prefetches, [&](const Prefetch& b) { return used_at(b) == kNever; });
  std::ranges::stable_sort(prefetches, {}, used_at);
  std::vector<Move> moves;
  for (std::size_t i = 0; i < prefetches.size(); ++i) {
    const std::size_t before = i - std::min(i, to_size(ahead));
    moves.push_back(moved(prefetches[i], used_at(prefetches[before])));
    moves.push_back(prepared(prefetches[i], used_at(prefetches[i])));
  }
  move(program, all, std::move(moves));
}

namespace {

bool overlap(const ProgramSet& set, const BufferList& a, const BufferList& b) {
  for (const Buffer x : a) {
    for (const Buffer y : b) {
      const BufferSpec &s = set.spec(x), &t = set.spec(y);
      if (s.root == t.root && s.offset < t.offset + t.bytes && t.offset < s.offset + s.bytes) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

void prefetch_beside(ProgramSet& set, std::size_t index) {
  std::vector<Instruction>& code = set.programs[index].instructions;
  check(!code.empty(), "nothing was recorded that could be moved");
  const Instruction& last = code.back();
  std::size_t to = code.size() - 1;
  for (bool beside = false; to > 0 && !beside; --to) {
    const Instruction& before = code[to - 1];
    if (overlap(set, before.writes, last.reads) || overlap(set, before.writes, last.writes) ||
        overlap(set, before.reads, last.writes)) {
      break;
    }
    beside = before.lane == Lane::compute &&
             (before.cost.work == Work::gemm || before.cost.work == Work::f32_gemm);
  }
  std::rotate(code.begin() + static_cast<std::ptrdiff_t>(to), code.end() - 1, code.end());
}

}  // namespace ballast
