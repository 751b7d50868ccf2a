#pragma once

#include "plan/program.h"

namespace ballast {

// A phase is several programs that run one after the other while the rest of the run stands still:
// the load of a decoder and its chunks, between two steps of a training run. What they keep among
// them lives as long as the phase, at a place that temporaries of all other programs have before
// and after it. So a phase begins with a program that fills it anew.

// BufferSpec::program of what phase `phase` keeps; phases count from 0.
constexpr int phase_owner(int phase) { return kPersistent - 1 - phase; }
constexpr bool belongs_to_phase(const BufferSpec& s) { return s.program < kPersistent; }
constexpr int phase_of(const BufferSpec& s) { return kPersistent - 1 - s.program; }
// Whether it keeps what it holds from one program to the next, of the run or of its phase.
constexpr bool outlives_program(const BufferSpec& s) { return s.program <= kPersistent; }

// While one lives, what is recorded into the set as persistent is what the phase keeps.
class PhaseScope {
 public:
  explicit PhaseScope(ProgramSet& set);
  ~PhaseScope();
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  ProgramSet& set_;
  std::size_t first_;  // buffer
  int phase_ = 0;
};

}  // namespace ballast
