#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "infer/adapter_stack.h"
#include "infer/sampler.h"
#include "models/wan/fit.h"
#include "plan/runner.h"

namespace ballast::infer {

// A clip to be made, whatever its text and noise will be.
struct VideoJob {
  // config, precision, format and fp8_matmul of its job; experts (low noise first), machine,
  // budgets and policy. What is recorded is decided here.
  wan::FitRequest fit;
  SamplerOptions sampler;
  wan::LatentSize latent;
  std::array<double, 2> guidance = {5, 5};  // of the low-noise steps and of the high-noise ones
  double boundary = 0;  // of two experts: the second has the timesteps from 1000 times it on
  std::optional<std::int64_t> high_noise_steps =
      {};                    // so many are the second's, instead of a boundary
  bool first_frame = false;  // the first latent frame is given and held (TI2V with an image)
  std::vector<AppliedLora> loras;
};

// One step of the loop as it will be.
struct PlannedStep {
  double timestep = 0;
  int expert = 0;
  double guidance = 1;  // exactly 1: only the prompt is evaluated
};

// Fails with ErrorCode::usage where options contradict each other or the model.
std::vector<PlannedStep> planned_steps(const VideoJob& job);

// What fit() plans: both evaluations of a step share a visit of each block, two experts take turns
// in one set of buffers, what the sampler keeps is a line of the plan.
wan::FitRequest fit_request(const VideoJob& job);

// Of the whole loop: steps, reading weights, changing experts.
double predicted_seconds(const VideoJob& job, const wan::PlannedRun& planned);

struct VideoInputs {
  std::span<const float> prompt = {}, negative = {};  // rows of text_dim, without padding
  std::span<const float> conditioning = {};  // [in - out, f, h, w]; empty where the model has none
  std::span<const float> first_frame = {};   // [out, 1, h, w]; VideoJob::first_frame
  std::span<const float> noise = {};         // [out, f, h, w]; empty: made of the seed
  std::uint64_t seed = 0;
  std::int64_t clip = 0;  // several clips of one seed have noise of their own
};

// Standard normal numbers, functions of seed, clip and place alone.
void make_noise(std::uint64_t seed, std::int64_t clip, std::span<float> to);

// After a step. The spans live until the next one.
struct StepReport {
  std::int64_t step = 0, steps = 0;  // from 1
  PlannedStep planned;
  double seconds = 0;                                 // of the step, weights that it waited for too
  double seconds_left = 0;                            // by what was measured so far
  std::span<const float> input;                       // latent that the network saw
  std::span<const float> conditional, unconditional;  // its answers; the second may be empty
  std::span<const float> guided;                      // unconditional + guidance (difference)
  std::span<const float> solved;                      // the solver's result, first frame included
};
using OnStep = std::function<void(const StepReport&)>;

// The denoising loop of a planned job, with its own runner. Weights are read when the first clip
// begins; of two experts only the one in use is in memory.
class VideoSampler {
 public:
  // planned: what fit(fit_request(job)) gave.
  VideoSampler(VideoJob job, wan::PlannedRun planned);

  // The latent [out, f, h, w] for the decoder. on_step may throw to end it.
  std::vector<float> run(const VideoInputs& inputs, const OnStep& on_step = {});

  const std::vector<PlannedStep>& steps() const { return steps_; }
  Bytes high_water(Tier t) const { return runner_->high_water(t); }
  std::int64_t expert_changes() const { return changes_; }  // since it was made

 private:
  void check_inputs(const VideoInputs& inputs) const;
  void use_expert(int expert);
  void give_timestep_rows();
  void put_text(const VideoInputs& inputs);
  const wan::DitRunIo& run_of(const PlannedStep& step) const;
  double seconds_left(std::size_t from) const;

  VideoJob job_;
  std::vector<PlannedStep> steps_;
  AdapterStack adapters_;
  std::vector<double> predicted_;  // by step; then, where one like it ran, what that took
  ProgramSet set_;
  std::unique_ptr<wan::Dit> dit_;
  MemoryPlan plan_;
  std::unique_ptr<Runner> runner_;
  std::vector<float> x_, guided_;
  int expert_ = -1;
  std::int64_t changes_ = 0;
};

// I2V: mask (4 channels, 1 on the first latent frame) and the latent of the clip that begins with
// the image.
std::vector<float> image_conditioning(const wan::LatentSize& size,
                                      std::span<const float> clip_latent);

}  // namespace ballast::infer
