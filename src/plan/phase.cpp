#include "plan/phase.h"

#include <algorithm>

namespace ballast {

PhaseScope::PhaseScope(ProgramSet& set) : set_(set), first_(set.buffers.size()) {
  for (const BufferSpec& s : set_.buffers) {
    if (belongs_to_phase(s)) phase_ = std::max(phase_, phase_of(s) + 1);
  }
}

// A view shares its root's owner, and what was there before the phase stays as it is.
PhaseScope::~PhaseScope() {
  for (std::size_t i = first_; i < set_.buffers.size(); ++i) {
    BufferSpec& s = set_.buffers[i];
    if (s.program == kPersistent && s.root.id >= first_) s.program = phase_owner(phase_);
  }
}

}  // namespace ballast
