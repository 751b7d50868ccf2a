#pragma once

#include <span>
#include <string>
#include <vector>

#include "models/student/config.h"
#include "models/student/params.h"
#include "nn/memory_policy.h"
#include "nn/optimizer.h"
#include "nn/precision.h"
#include "nn/update.h"
#include "plan/program_builder.h"

namespace ballast::student {

// Everything that decides what is recorded.
struct Job {
  Config config = {};
  std::int64_t batch = 1;          // samples that share a run of the step
  std::int64_t runs_per_step = 1;  // micro-batches of an optimizer step: the loss is their mean
  bool trains = true;              // false: "predict" alone
  // kept: everything backward reads; otherwise block inputs only, blocks are computed again.
  Activations activations = Activations::kept;
  bool state_on_host = false;        // gradients and moments wait in host memory
  std::int64_t heads_per_group = 0;  // of attention's backward pass; 0: all at once
  Precision precision = {};
  OptimizerOptions optimizer = {};
  double max_grad_norm = 0;  // 0: no clipping
};

// What the host gives before a run and takes after it (host tier). Places of the latent's grid come
// row by row, channels fastest.
struct SampleIo {
  Buffer latent;  // [L, N] f32
  Buffer time;    // [1, C] f32: time_features()
  Buffer text;    // [1, X] f32: mean of the prompt's states over the padded tokens
  Buffer target;  // [L, T] f32: what the teacher said; with Job::trains
  Buffer output;  // [L, T] f32: of "predict"
  Buffer own;     // [L, N] f32: the same before the projection
};

struct Parameter {
  std::string name;
  int group = 0;
  Buffer value;     // f32 on the device
  Buffer gradient;  // f32, device or host; invalid without training
};

// [sin(t f_j), cos(t f_j)], f_j = exp(-j ln(10^4) / (width / 2 - 1)): the input of the time MLP.
void time_features(double t, std::span<float> to);

// The student as recorded programs: "student.predict" (one sample), and with training
// "student.zero", "student.step" (forward, loss, backward; gradients and loss add up),
// "init_state", "after_restore", "grad_norm", "update", "value_norm". All weights are f32 and stay
// on the device.
class Student {
 public:
  Student(ProgramSet& set, Job job);

  const Job& job() const { return job_; }
  const std::vector<SampleIo>& samples() const { return samples_; }
  Buffer loss() const { return loss_; }            // [1] f64 on the host: since "student.zero"
  Buffer grad_norm() const { return grad_norm_; }  // [1] f32 on the host
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<UpdatedTensor>& trained() const { return trained_; }

  static constexpr const char* kStep = "student.step";
  static constexpr const char* kPredict = "student.predict";
  static constexpr const char* kZero = "student.zero";

 private:
  void declare(ProgramBuilder& pb);
  void record_updates(ProgramSet& set);

  Job job_;
  std::vector<SampleIo> samples_;
  std::vector<Parameter> parameters_;
  std::vector<UpdatedTensor> trained_;
  Buffer loss_, loss_sum_, grad_norm_;
};

}  // namespace ballast::student
