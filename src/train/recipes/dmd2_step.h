#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "core/random.h"
#include "models/wan/dit.h"
#include "plan/runner.h"
#include "train/config/dmd2_options.h"

namespace ballast::train {

// Which random numbers a part of a step has: those of its samples, wherever they are run.
struct Dmd2Position {
  std::uint64_t seed = 0;
  std::int64_t step = 1;     // of the run
  std::size_t run = 0;       // of DitIo::runs
  std::int64_t first = 0;    // the part's first sample in the step
  std::int64_t samples = 1;  // of the whole step
};

// One step of DMD2 on a Dit with DitJob::distil, part by part. The host's work between programs
// stands here: f64 of f32 numbers, in a fixed order. With x_t = (1 - s) x0 + s n and the
// answer v, x0^ = x_t - s v.
class Dmd2Step {
 public:
  // run: called with each program in turn.
  using RunProgram = std::function<void(const std::string& program, const StepValues& values)>;
  Dmd2Step(const Dmd2Options& options, const wan::Dit& dit, Runner& runner, RunProgram run);

  // For a part whose texts, and with Rollout::data latents, are in the inputs: keeps the latents.
  void begin_part(const Dmd2Position& at);

  // A rollout x of the student without gradients; noised, the critic's loss on it:
  //   mean((v_critic - (n - x))^2)
  // Adds to the critic's gradients and to DitIo::loss.
  void critic(const Dmd2Position& at);

  // A rollout x of the student, scored by critic (f) and teacher (r = uncond + w (cond - uncond))
  // at one noised x:  g = (f - r) / mean|x - r|, no number counts as 0.  Adds the gradient of
  //   mean((x - stopgrad(x - g))^2) / 2
  // to the student's; returns the part's share of that loss. By v that is - s g / elements. The
  // forward pass is made again for it rather than kept while the others are asked.
  double student(const Dmd2Position& at);

  // A rollout of the student to x at sigma s; the guided teacher goes on from there to the next
  // step's sigma s' in Dmd2Options::teacher_steps Euler steps, to x'. Adds the gradient of
  //   mean((v - (x' - x) / (s' - s))^2)
  // to the student's; returns the part's share of that loss.
  double regress(const Dmd2Position& at);

  // Sigmas at which the critic is scored, of all samples of the step.
  std::vector<float> critic_scores(const Dmd2Position& at) const;

 private:
  // What a phase's random numbers are named after.
  struct Phase {
    const Dmd2Position& at;
    std::string_view name;  // "critic", "student"
  };

  std::span<float> floats(Buffer b) const;
  RandomSource source(const Phase& phase, std::string_view what, std::size_t sample) const;
  void set_sigma(const Phase& phase, std::size_t sample, float sigma) const;
  void run(const std::vector<wan::DitPassIo>& runs, const Phase& phase, std::size_t set) const;
  // To kept_input and kept_answer; returns which of the student's steps that is.
  std::size_t roll_out(const Phase& phase);
  // The teacher's guided answer for sample i of the part, after its program ran.
  std::span<const float> unguided(const Phase& phase, std::size_t sample) const;
  double guided(std::span<const float> caption, std::span<const float> empty, std::size_t e) const;
  float score_sigma(const Phase& phase, std::size_t sample) const;
  // s: sigma of the student's step; score: that of the scores. Returns the sample's loss.
  double pull(const wan::DitSampleIo& io, std::span<const float> empty, double s, double score);

  Dmd2Options options_;
  std::vector<float> sigmas_;
  const wan::Dit& dit_;
  Runner& runner_;
  RunProgram run_program_;
  std::vector<float> scores_;
};

}  // namespace ballast::train
