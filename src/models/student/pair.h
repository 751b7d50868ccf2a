#pragma once

#include <memory>
#include <vector>

#include "models/student/student.h"
#include "models/wan/dit.h"
#include "plan/profile.h"

namespace ballast::student {

// A frozen teacher and the student that learns from it, in one plan.
struct PairJob {
  wan::Config teacher = {};
  Precision teacher_precision = {};
  WeightFormat teacher_format = WeightFormat::stored;
  MemoryPolicy teacher_policy = {};  // where its weights are
  // Beside a student on a GPU: the teacher is computed by the processors, in host memory, and all
  // that reaches the GPU is its answer. Its "device" of the policy is host memory then.
  bool teacher_on_processors = false;
  Job student = {};
  // The teacher needs nothing of the student, so while the student learns from one answer the
  // teacher works on the next, in one program ("distill"): weights stream in during all of it.
  // Otherwise they are two, "step" (the teacher's) and "student.step". The bits are the same.
  bool side_by_side = true;
};

// What the latent of the student's grid is for the teacher.
inline wan::LatentSize teacher_latent(const Config& c) { return {1, c.grid(), c.grid()}; }

// Records the programs of both: "load" reads the teacher; the student's are those of
// models/student/student.h. The profile decides how work is interleaved, nothing else.
class Pair {
 public:
  Pair(ProgramSet& set, PairJob job, std::vector<WeightGroup> teacher,
       const MachineProfile& profile);

  const wan::DitPassIo& teacher() const { return dit_->io().runs[0]; }
  const Student& student() const { return *student_; }
  const PairJob& job() const { return job_; }

  static constexpr const char* kBoth = "distill";
  static constexpr const char* kTeacher = "step";

 private:
  PairJob job_;
  std::unique_ptr<wan::Dit> dit_;
  std::unique_ptr<Student> student_;
};

// Makes one program of two, instruction by instruction in proportion to the time they take. Each
// keeps its order; neither may read what the other writes. `first` disappears, `second` is called
// `name` then.
void interleave(ProgramSet& set, std::string_view first, std::string_view second, std::string name,
                const MachineProfile& profile);

}  // namespace ballast::student
