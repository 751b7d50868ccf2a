#pragma once

#include <string>
#include <vector>

#include "fit/planned_run.h"
#include "models/student/pair.h"

namespace ballast::student {

enum class TeacherPlacement : std::uint8_t {
  automatic,   // the fastest that fits
  device,      // all of it stays there
  host,        // in host memory, streamed from there: none of it stays on a GPU
  disk,        // streamed from its file, the same
  processors,  // computed by the CPU in host memory, beside a student on the GPU
};
std::string_view name_of(TeacherPlacement p);

// A student that learns from a frozen teacher. Of a policy, what it says about weights is about the
// teacher's; activations, state_on_host and heads_per_group are the student's. offload: the teacher
// is computed by the processors, in host memory, beside a student on a GPU.
class FitJob final : public fit::Job {
 public:
  PairJob pair = {};  // what policies say about is theirs
  std::vector<WeightGroup> teacher = {};
  TeacherPlacement placement = TeacherPlacement::automatic;
  bool recompute = false;       // blocks of the student keep their input alone, whatever fits
  bool gpu = false;             // the student is on a GPU
  int host_threads = 1;         // of a teacher on the processors
  MachineProfile profile = {};  // decides how work is interleaved

  std::unique_ptr<fit::Job> clone() const override { return std::make_unique<FitJob>(*this); }
  fit::Recording record(const MemoryPolicy& policy, const Backend& backend) const override;
  // The job under a policy.
  PairJob under(const MemoryPolicy& policy) const;

  std::span<const WeightGroup> groups() const override { return teacher; }
  WeightFormat format() const override { return pair.teacher_format; }
  fit::Trained trained() const override { return fit::Trained::adapters; }  // of these groups: none
  const OptimizerOptions& optimizer() const override { return pair.student.optimizer; }
  std::int64_t blocks() const override { return pair.teacher.layers; }
  std::int64_t depth() const override { return pair.teacher.layers; }
  std::unique_ptr<fit::Job> with_depth(std::int64_t layers) const override;

  std::vector<std::vector<MemoryPolicy>> candidates(const fit::Switches&) const override;
  std::vector<MemoryPolicy> leanest() const override;
  bool may_fill() const override;
  bool stays_in_host_memory(const MemoryPolicy& p) const override { return p.offload; }
  // Work of both is interleaved: what is alive at once does not grow evenly with the blocks.
  bool recordings_are_short() const override { return true; }
  Bytes min_kept_bytes(const MemoryPolicy& policy) const override;

 private:
  std::vector<MemoryPolicy> placements() const;
  std::vector<MemoryPolicy> of_student(MemoryPolicy p) const;
};

inline FitJob& job_of(fit::Request& r) { return r.job.as<FitJob>(); }
inline const FitJob& job_of(const fit::Request& r) { return r.job.as<FitJob>(); }

// Where the teacher is and what the student keeps, in words: "teacher streams from RAM through 2
// slots, 12 groups resident; student keeps its activations".
std::string text_of(const PairJob& pair);

}  // namespace ballast::student
