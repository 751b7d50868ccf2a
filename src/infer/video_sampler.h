#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "fit/fit.h"
#include "infer/adapter_stack.h"
#include "infer/denoiser.h"
#include "models/wan/fit_job.h"
#include "plan/runner.h"

namespace ballast::infer {

// A clip to be made, whatever its text and noise will be.
struct VideoJob {
  // config, precision, format and fp8_matmul of its job; experts (low noise first), machine,
  // budgets and policy. What is recorded is decided here.
  fit::Request request = {.job = wan::FitJob()};
  SamplerOptions sampler;
  wan::LatentSize latent;
  std::array<double, 2> guidance = {5, 5};  // of the low-noise steps and of the high-noise ones
  double boundary = 0;  // of two experts: the second has the timesteps from 1000 times it on
  std::optional<std::int64_t> high_noise_steps =
      {};                    // so many are the second's, instead of a boundary
  bool first_frame = false;  // the first latent frame is given and held (TI2V with an image)
  std::vector<AppliedLora> loras;
};

// What of it does not depend on memory.
Denoising denoising_of(const VideoJob& job);

// Fails with ErrorCode::usage where options contradict each other or the model.
std::vector<PlannedStep> planned_steps(const VideoJob& job);

// What fit() plans: both evaluations of a step share a visit of each block, two experts take turns
// in one set of buffers, what the sampler keeps is a line of the plan.
fit::Request fit_request(const VideoJob& job);

// Of the whole loop: steps, reading weights, changing experts.
double predicted_seconds(const VideoJob& job, const fit::PlannedRun& planned);

using OnStep = std::function<void(const StepReport&)>;

// The denoising loop of a planned job, with its own runner. Weights are read when the first clip
// begins; of two experts only the one in use is in memory.
class VideoSampler {
 public:
  // planned: what fit(fit_request(job)) gave.
  VideoSampler(VideoJob job, fit::PlannedRun planned);

  // The latent [out, f, h, w] for the decoder. on_step may throw to end it.
  std::vector<float> run(const VideoInputs& inputs, const OnStep& on_step = {});

  const std::vector<PlannedStep>& steps() const { return denoiser_->steps(); }
  Bytes high_water(Tier t) const { return runner_->high_water(t); }
  std::int64_t expert_changes() const { return changes_; }  // since it was made

 private:
  bool use_expert(int expert);

  VideoJob job_;
  AdapterStack adapters_;
  ProgramSet set_;
  std::unique_ptr<wan::Dit> dit_;
  MemoryPlan plan_;
  std::unique_ptr<Runner> runner_;
  std::optional<Denoiser> denoiser_;
  int expert_ = -1;
  std::int64_t changes_ = 0;
};

}  // namespace ballast::infer
