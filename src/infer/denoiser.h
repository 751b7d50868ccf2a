#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "core/to_size.h"
#include "infer/sampler.h"
#include "models/wan/dit.h"
#include "plan/runner.h"

namespace ballast::infer {

// The way of a clip from noise to its latent, whichever programs answer.
struct Denoising {
  wan::Config model = {};
  int experts = 1;
  SamplerOptions sampler = {};
  wan::LatentSize latent = {};
  std::array<double, 2> guidance = {5, 5};  // of the low-noise steps and of the high-noise ones
  double boundary = 0;  // of two experts: the second has the timesteps from 1000 times it on
  std::optional<std::int64_t> high_noise_steps =
      {};                    // so many are the second's, instead of a boundary
  bool first_frame = false;  // the first latent frame is given and held (TI2V with an image)

  std::size_t elements() const { return to_size(model.out_dim * latent.cells()); }
};

// One step of the loop as it will be.
struct PlannedStep {
  double timestep = 0;
  int expert = 0;
  double guidance = 1;  // exactly 1: only the prompt is evaluated
};

// Fails with ErrorCode::usage where options contradict each other or the model.
std::vector<PlannedStep> planned_steps(const Denoising& what);

// What the network must be able to answer, the prompt and the negative one in one run; first those.
std::vector<wan::Batch> batches_of(const Denoising& what);
wan::Batch batch_of(const Denoising& what, const PlannedStep& step);

// What a denoiser has in memory: the latent, the guided answer, what the solver keeps.
Bytes denoiser_bytes(const Denoising& what);

struct VideoInputs {
  std::span<const float> prompt = {}, negative = {};  // rows of text_dim, without padding
  std::span<const float> conditioning = {};  // [in - out, f, h, w]; empty where the model has none
  std::span<const float> first_frame = {};   // [out, 1, h, w]; Denoising::first_frame
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

// A network in a runner that someone else has.
struct DenoisingNetwork {
  Runner& runner;
  std::span<const wan::DitPassIo> runs;  // those of batches_of() among them
  std::function<bool(int)> use_expert;   // brings its weights; whether they had to be read
};

// Makes one clip, step by step.
class Denoiser {
 public:
  // predicted: seconds of the steps, where they are known.
  Denoiser(Denoising what, DenoisingNetwork network, std::vector<double> predicted = {});

  // The inputs must live until it is done.
  void begin(const VideoInputs& inputs);
  bool done() const { return next_ == steps_.size(); }
  StepReport step();
  std::span<const float> latent();  // [out, f, h, w], for the decoder

  const std::vector<PlannedStep>& steps() const { return steps_; }

 private:
  void check_inputs(const VideoInputs& inputs) const;
  void write_timestep_rows();
  void put_text(const VideoInputs& inputs);
  void hold_first_frame();
  const wan::DitPassIo& run_of(const wan::Batch& batch) const;
  double seconds_left() const;

  Denoising what_;
  DenoisingNetwork network_;
  std::vector<PlannedStep> steps_;
  std::vector<double> predicted_;  // by step; then, where one like it ran, what that took
  std::vector<float> x_, guided_;
  std::optional<Sampler> sampler_;
  std::span<const float> first_frame_;
  std::size_t next_ = 0;
};

// I2V: mask (4 channels, 1 on the first latent frame) and the latent of the clip that begins with
// the image.
std::vector<float> image_conditioning(const wan::LatentSize& size,
                                      std::span<const float> clip_latent);

}  // namespace ballast::infer
