#include "nn/bring_order.h"

#include <algorithm>
#include <unordered_map>

#include "core/error.h"

namespace ballast {
namespace {

struct Move {
  Bring bring;
  std::uint32_t to;  // before this instruction
};

// What is in no move and not in `all` stays where it is; what is only in `all` is left out.
void move(Program& program, const std::vector<Bring>& all, std::vector<Move> moves) {
  std::ranges::stable_sort(moves, {}, &Move::to);
  std::vector<Instruction>& old = program.instructions;
  std::vector<bool> stays(old.size(), true);
  for (const Bring& b : all) std::fill(stays.begin() + b.begin, stays.begin() + b.end, false);
  auto count = static_cast<std::size_t>(std::ranges::count(stays, true));
  for (const Move& m : moves) count += m.bring.end - m.bring.begin;
  std::vector<Instruction> code;
  code.reserve(count);  // programs are kept: no room for what is left out
  auto next = moves.begin();
  for (std::uint32_t i = 0; i <= old.size(); ++i) {
    for (; next != moves.end() && next->to == i; ++next) {
      for (std::uint32_t k = next->bring.begin; k < next->bring.end; ++k) {
        code.push_back(std::move(old[k]));
      }
    }
    if (i < old.size() && stays[i]) code.push_back(std::move(old[i]));
  }
  old = std::move(code);
}

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

void bring_early(ProgramSet& set, std::size_t index, const std::vector<Bring>& brings) {
  if (brings.empty()) return;
  Program& program = set.programs[index];
  std::unordered_map<std::uint32_t, FreeFrom> places;
  for (const Bring& b : brings) places[set.spec(b.place).root.id];
  const std::uint32_t first = brings.front().begin;  // what is recorded before is wanted before
  std::vector<Move> moves;
  auto next = brings.begin();
  for (std::uint32_t i = 0; i < program.instructions.size();) {
    if (next != brings.end() && next->begin == i) {
      const BufferSpec& s = set.spec(next->place);
      FreeFrom& place = places[s.root.id];
      const std::uint32_t to = std::max(first, place.of(s.offset, s.offset + s.bytes));
      moves.push_back({*next, to});
      place.used(s.offset, s.offset + s.bytes, to);
      i = next->end;
      ++next;
      continue;
    }
    const Instruction& ins = program.instructions[i++];
    for (const auto* touched : {&ins.reads, &ins.writes}) {
      for (const Buffer b : *touched) {
        const BufferSpec& s = set.spec(b);
        const auto place = places.find(s.root.id);
        if (place != places.end()) place->second.used(s.offset, s.offset + s.bytes, i);
      }
    }
  }
  move(program, brings, std::move(moves));
}

void bring_just_in_time(ProgramSet& set, std::size_t index, std::vector<Bring> brings, int ahead) {
  check(ahead > 0, "{} places ahead", ahead);
  Program& program = set.programs[index];
  constexpr std::uint32_t kNever = ~0u;
  std::unordered_map<std::uint32_t, std::uint32_t> first_use;  // by root
  for (const Bring& b : brings) first_use[set.spec(b.place).root.id] = kNever;
  auto next = brings.begin();
  for (std::uint32_t i = 0; i < program.instructions.size();) {
    if (next != brings.end() && next->begin == i) {
      i = next->end;
      ++next;
      continue;
    }
    for (const Buffer b : program.instructions[i].reads) {
      const auto found = first_use.find(set.spec(b).root.id);
      if (found != first_use.end()) found->second = std::min(found->second, i);
    }
    ++i;
  }
  const std::vector<Bring> all = brings;
  const auto used_at = [&](const Bring& b) { return first_use[set.spec(b.place).root.id]; };
  std::erase_if(brings, [&](const Bring& b) { return used_at(b) == kNever; });
  std::ranges::stable_sort(brings, {}, used_at);
  std::vector<Move> moves;
  for (std::size_t i = 0; i < brings.size(); ++i) {
    const std::size_t before = i - std::min(i, static_cast<std::size_t>(ahead));
    moves.push_back({brings[i], used_at(brings[before])});
  }
  move(program, all, std::move(moves));
}

}  // namespace ballast
