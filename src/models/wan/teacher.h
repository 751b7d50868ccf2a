#pragma once

#include <vector>

#include "models/wan/dit.h"

namespace ballast::wan {

// A frozen transformer that answers beside one in training, in the same plan. Its programs are
// "teacher.load" and "teacher.step", for every kind of run of the one in training.
struct TeacherJob {
  Config config = {};
  Precision precision = {};
  WeightFormat format = WeightFormat::stored;
  // Where its weights are; none: wherever the fastest plan has them.
  std::optional<MemoryPolicy> policy = {};
  bool guided = false;  // a run has every sample twice, the second time for the empty caption
  std::vector<std::vector<WeightGroup>> experts = {};
};

// What is recorded of it: runs like those of the student, in their order.
DitJob dit_job(const TeacherJob& teacher, const Dit& student);
inline constexpr const char* kTeacherPrefix = "teacher.";

// Where a teacher's weights may be: the fastest places first, the leanest last.
std::vector<MemoryPolicy> teacher_policies();

}  // namespace ballast::wan
