#pragma once

#include <variant>
#include <vector>

#include "memory/budget.h"
#include "models/student/pair.h"
#include "plan/memory_plan.h"
#include "plan/predict.h"
#include "plan/process_lines.h"
#include "plan/refusal.h"

namespace ballast::student {

enum class TeacherPlace : std::uint8_t {
  automatic,   // the fastest that fits
  device,      // all of it stays there
  host,        // in host memory, streamed from there: none of it stays on a GPU
  disk,        // streamed from its file, the same
  processors,  // computed by the CPU in host memory, beside a student on the GPU
};
std::string_view name_of(TeacherPlace p);

// What to plan, for which machine, inside which budget. Of the job, teacher_policy and the
// student's activations, state_on_host and heads_per_group are the search's to choose.
struct PairRequest {
  PairJob job;
  std::vector<WeightGroup> teacher;
  TeacherPlace place = TeacherPlace::automatic;
  bool recompute = false;  // blocks of the student keep their input alone, whatever fits
  Backend backend;
  int host_threads = 1;  // of a teacher on the processors
  MachineProfile profile;
  Budget budget;
  std::vector<ProcessLine> other_lines;  // what the caller itself keeps in memory
};

struct PlannedPair {
  PairJob job;  // as chosen
  ProgramSet set;
  MemoryPlan plan;
  std::vector<PredictedTime> times;  // by program
  std::vector<ProcessLine> lines;

  Bytes needed(Tier t) const;
  double seconds_of(std::string_view program) const;
  double seconds_per_step() const;
};

PlannedPair plan_pair(const PairRequest& request, const PairJob& job);

// The fastest predicted plan that fits, or what the leanest one misses.
std::variant<PlannedPair, Refusal> fit_pair(const PairRequest& request);

// Where the teacher is and what the student keeps, in words: "teacher streamed from host memory, 12
// of 42 groups stay".
std::string text_of(const PlannedPair& planned);

}  // namespace ballast::student
