#pragma once

#include <cstdint>
#include <optional>

#include "core/dtype.h"

namespace ballast::train {

// t is the noise fraction in [0, 1]: 0 clean, 1 noise.
enum class TimestepSampling : std::uint8_t {
  table_logit_normal,  // diffusion-pipe: 10,000 quantiles, cut to [min_t, max_t)
  table_uniform,
  uniform,  // musubi-tuner from here on
  sigmoid,
  shift,
  flux_shift,
  logsnr,
  sigma,
  shifted_table,  // flow-matching trainer: sigma of shift(k / 1000), k = 1 ... 1000, uniform index
};
// logit_normal and mode change how sigma is drawn, the others weigh the sample's loss: cosmap
// 2 / (pi (1 - 2 t + 2 t^2)), sigma_sqrt t^-2, bell exp(-2 (t - 1/2)^2) less its minimum, with mean
// 1 over 1000 steps of shift 5.
enum class Weighting : std::uint8_t { none, logit_normal, mode, cosmap, sigma_sqrt, bell };

struct TimestepOptions {
  TimestepSampling sampling = TimestepSampling::table_logit_normal;
  double sigmoid_scale = 1;
  double shift = 0;             // of tables and shift; 0: none, 8 in the shifted table
  bool flux_shift = false;      // of the tables: shift by resolution
  double min_t = 0, max_t = 1;  // in sigma they bound the index, counted from noise to clean
  bool preserve_shape = false;  // musubi: draw again instead of squeezing into the range
  double logit_mean = 0, logit_std = 1, mode_scale = 1.29;
  Weighting weighting = Weighting::none;
  double time_offset = 0;  // model time = 1000 t + this: 0 diffusion-pipe, 1 musubi; not in sigma
  int strata = 0;          // num_timestep_buckets: each of n shares once in n samples; 0: none
  DType sigma_dtype = DType::f32;  // sigma: t is rounded to it, as musubi does to the model's dtype
};

// What a drawn timestep means for one sample.
struct Timestep {
  double t = 0;           // noise fraction
  double model_time = 0;  // what the transformer is told
  double weight = 1;      // of the sample's loss
};

// One side of the boundary between two experts.
struct ExpertSide {
  int expert = 0;  // 0 low noise: model time / 1000 < boundary; 1 high noise: the rest
  double boundary = 0;
};

// Where a sample stands, for its random numbers: nothing else decides the draw, so a resumed run,
// another split into micro-batches or another policy draws the same.
struct DrawAt {
  std::uint64_t seed = 0;
  std::int64_t step = 0;    // optimizer step, from 1
  std::int64_t sample = 0;  // of the step, over all micro-batches
  // Only draws on this side; the distribution keeps its shape there, as if others were drawn again.
  std::optional<ExpertSide> side = std::nullopt;
  std::int64_t samples_before = 0;  // of the run, before this step: the place in the strata
};

// latent_height and latent_width: of the sample, for the shift by resolution. Never allocates.
// Options that leave no timestep are an error (ErrorCode::input).
Timestep draw_timestep(const TimestepOptions& o, const DrawAt& at, std::int64_t latent_height,
                       std::int64_t latent_width);
// The timestep at quantile p in [0, 1] of the distribution: evaluation.
Timestep timestep_at_quantile(const TimestepOptions& o, double p, std::int64_t latent_height,
                              std::int64_t latent_width);

// Two experts: which of them (0 low noise, 1 high noise) the step trains, with the probability that
// the distribution has on its side; every sample of the step is then drawn on that side of the
// boundary (DrawAt::side). latent_height and latent_width: of the step's first sample.
int draw_expert(const TimestepOptions& o, double boundary, std::uint64_t seed, std::int64_t step,
                std::int64_t latent_height = 0, std::int64_t latent_width = 0);

}  // namespace ballast::train
