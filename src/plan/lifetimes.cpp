#include "plan/lifetimes.h"

#include <algorithm>

#include "core/error.h"
#include "core/to_size.h"
#include "plan/phase.h"

namespace ballast {

void lifetimes(const ProgramSet& set, int program, std::vector<Lifetime>& life) {
  life.resize(set.buffers.size());
  const Program& p = set.programs[to_size(program)];
  for (std::uint32_t i = 0; i < p.instructions.size(); ++i) {
    const Instruction& ins = p.instructions[i];
    const auto touch = [&](Buffer b, bool read) {
      const BufferSpec& s = set.spec(b);
      Lifetime& l = life[s.root.id];
      if (!outlives_program(s)) {  // names are looked up for a message only
        if (s.program != program) [[unlikely]] {
          check(false, "{} of program {} touches {}, a temporary of program {}", ins.name, p.name,
                set.name(b), set.programs[to_size(s.program)].name);
        }
        if (read && l.first >= i) [[unlikely]] {
          check(false, "{} reads {} before it was written", ins.name, set.name(b));
        }
      }
      l.first = std::min(l.first, i);
      l.last = i;
      ++l.uses;
    };
    for (const Buffer b : ins.reads) touch(b, true);
    for (const Buffer b : ins.writes) touch(b, false);
  }
}

std::vector<Lifetime> lifetimes(const ProgramSet& set, int program) {
  std::vector<Lifetime> life;
  lifetimes(set, program, life);
  return life;
}

}  // namespace ballast
