#include "plan/lifetimes.h"

#include <algorithm>

#include "core/error.h"

namespace ballast {

std::vector<Lifetime> lifetimes(const ProgramSet& set, int program) {
  std::vector<Lifetime> life(set.buffers.size());
  const Program& p = set.programs[static_cast<std::size_t>(program)];
  for (std::uint32_t i = 0; i < p.instructions.size(); ++i) {
    const Instruction& ins = p.instructions[i];
    const auto touch = [&](Buffer b, bool read) {
      const BufferSpec& s = set.spec(b);
      check(s.program == kPersistent || s.program == program,
            "{} of program {} touches {}, a temporary of program {}", ins.name, p.name, set.name(b),
            set.programs[static_cast<std::size_t>(std::max(s.program, 0))].name);
      Lifetime& l = life[s.root.id];
      check(!read || s.program == kPersistent || l.first < i, "{} reads {} before it was written",
            ins.name, set.name(b));
      l.first = std::min(l.first, i);
      l.last = i;
      ++l.uses;
    };
    for (const Buffer b : ins.reads) touch(b, true);
    for (const Buffer b : ins.writes) touch(b, false);
  }
  return life;
}

}  // namespace ballast
