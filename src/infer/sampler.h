#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/bytes.h"
#include "core/to_size.h"

namespace ballast::infer {

// Flow matching: x_sigma = (1 - sigma) x0 + sigma noise, the network answers v = noise - x0, so
// x0 = x - sigma v. A sampler walks sigma from 1 to 0.

enum class Solver : std::uint8_t {
  unipc,  // order 2, corrector from the second step on
  dpmpp,  // DPM-Solver++ 2M, midpoint
  euler,
};
std::string_view name_of(Solver s);
std::optional<Solver> find_solver(std::string_view name);  // also "dpm++" and "uni_pc"

enum class SigmaSchedule : std::uint8_t {
  official,   // evenly spaced, shifted: from 1, of UniPC from 0.999; integer timesteps but of Euler
  diffusers,  // its UniPC and Euler
  simple,     // ComfyUI: out of a table of 1000
  listed,     // of distilled models: shifted base timesteps as given
  linear,     // evenly spaced from sigma_start to sigma_end, no shift: flow-matching trainer
};
std::string_view name_of(SigmaSchedule s);
std::optional<SigmaSchedule> find_schedule(std::string_view name);

struct SamplerOptions {
  Solver solver = Solver::unipc;
  SigmaSchedule schedule = SigmaSchedule::official;
  std::int64_t steps = 50;  // of `listed` as many as there are
  double shift = 5;
  std::vector<double> listed = {};               // base timesteps, falling, in (0, 1000]
  double sigma_start = 0.999, sigma_end = 0.01;  // of `linear`
  double time_scale = 1000;                      // of `linear`: timestep over sigma
};

// Steps of models that were distilled to them: Euler at shifted base timesteps, shift 5. As they
// are given, falling from 1000; or so many, evenly: four are 1000, 750, 500, 250.
SamplerOptions distilled_steps(std::vector<double> timesteps);
SamplerOptions distilled_steps(std::int64_t steps = 4);

struct Schedule {
  std::vector<float> sigmas;      // steps + 1 of them, falling
  std::vector<double> timesteps;  // what the network is told, one for each step

  std::int64_t steps() const { return static_cast<std::int64_t>(timesteps.size()); }
};

// Fails with ErrorCode::usage where options make no schedule.
Schedule make_schedule(const SamplerOptions& options);

// The update of one clip's latent, in f32 with a fixed order of operations: its bits depend on the
// numbers alone. Keeps what earlier steps predicted; step() allocates nothing.
class Sampler {
 public:
  Sampler(const SamplerOptions& options, std::size_t elements);

  const Schedule& schedule() const { return schedule_; }
  std::int64_t next() const { return i_; }  // the step that comes
  bool done() const { return i_ == schedule_.steps(); }

  // x, at sigma i, becomes x at sigma i + 1; v is the guided answer of the network at x.
  void step(std::span<const float> v, std::span<float> x);

  // Memory of a sampler for so many numbers.
  static Bytes bytes(Solver solver, std::size_t elements);

 private:
  void unipc(std::span<float> x);
  void dpmpp(std::span<float> x);
  float lambda(std::int64_t i) const { return lambdas_[to_size(i)]; }
  float sigma(std::int64_t i) const { return schedule_.sigmas[to_size(i)]; }

  Solver solver_;
  Schedule schedule_;
  std::vector<float> lambdas_;       // ln((1 - sigma) / sigma) of the rounded sigmas
  std::vector<float> m0_, m1_, m2_;  // x0 as predicted now, a step and two steps ago
  std::vector<float> corrected_;     // UniPC: the sample at the last sigma, corrected
  std::int64_t i_ = 0;
  int last_order_ = 0;
};

}  // namespace ballast::infer
