#pragma once

#include <functional>
#include <span>
#include <vector>

#include "models/student/pair.h"
#include "plan/runner.h"

namespace ballast::train {

// What teacher and student are shown in one sample, for whoever makes distillation batches to fill
// in.
struct DistillSample {
  std::span<float> latent;   // [L, N]: the student's latent, channels fastest
  std::span<float> context;  // [S, X]: the prompt's states, zeros behind its end
  std::span<float> text;     // [X]: the mean that the student reads
  double t = 0;              // 0 ... 999
};
// Fills in the samples of the run's micro-batch `number`, counted from 0 through the whole run.
using DistillBatchMaker =
    std::function<void(std::int64_t number, std::span<DistillSample> distill_batch)>;

// How the teacher, which has more channels, sees the student's latent.
enum class TeacherInput : std::uint8_t {
  repeated,  // channel k is the student's channel k mod N
  zeros,     // what the reference does: a projection of zeros, where channel counts differ
};

// Shows a recorded pair batch by batch. All memory is there before the first one.
class DistillBatches {
 public:
  // Pair and runner must outlive it.
  DistillBatches(const student::Pair& pair, Runner& runner, DistillBatchMaker maker,
                 TeacherInput input);

  void load();  // the teacher's weights
  // One micro-batch: its gradients and its loss are added to those since "student.zero". Micro-
  // batches come one after the other; the first of a process may be any. run: called with each
  // program in turn.
  void learn(std::int64_t number, const std::function<void(const char* program)>& run);

  // Bytes that distillation batches take outside of the arenas.
  static Bytes bytes(const student::PairJob& job);

 private:
  void ask(std::int64_t number);  // makes the distillation batch and gives it to the teacher
  void write_student_inputs();    // the distillation batch and the teacher's answer to the student

  const student::Pair& pair_;
  Runner& runner_;
  DistillBatchMaker maker_;
  TeacherInput input_;
  std::vector<std::vector<float>> latents_, texts_;  // by sample
  std::vector<DistillSample> asked_;  // what the teacher is working on, or has answered
  std::int64_t asked_number_ = -1;
};

}  // namespace ballast::train
