#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/parse_enum.h"

namespace ballast::wan {
struct DistilPrograms;
}

namespace ballast::train {

// Distribution matching distillation (DMD2) of a model to few steps, as the keys of [distill] say
// it. docs/distillation.md has the formulas.
struct Dmd2Options {
  // Where the inputs come from that the student learns on.
  enum class Rollout : std::uint8_t {
    simulated,  // the student's own steps from noise
    data,       // a latent of the dataset, noised
  };
  // What a simulated step adds to the student's clean latent on the way to the next step.
  enum class Renoise : std::uint8_t {
    fresh,      // new noise
    predicted,  // the noise that the student's answer implies: Euler's step
  };

  static constexpr std::array<EnumName<Rollout>, 2> kRollouts = {
      {{"simulate", Rollout::simulated}, {"data_latent", Rollout::data}}};
  static constexpr std::array<EnumName<Renoise>, 2> kRenoises = {
      {{"fresh", Renoise::fresh}, {"predicted", Renoise::predicted}}};

  std::vector<double> steps = {1000, 750, 500, 250};  // base timesteps, falling, in (0, 1000]
  double shift = 5;        // of these and of the times that scores are taken at
  double guidance = 4.5;   // of the teacher; exactly 1: it is not guided
  std::int64_t every = 5;  // the student is updated with every so many updates of the critic
  double critic_rate = 1;  // learning rate of the critic over that of the student
  Rollout rollout = Rollout::simulated;
  Renoise renoise = Renoise::fresh;
  double min_t = 0.02, max_t = 0.98;  // of the times that scores are taken at, after the shift

  // The student's first steps of the run, all of them: from what its own steps lead to, one of them
  // is to end where the guided teacher ends with so many of its own.
  std::int64_t regression_steps = 0, teacher_steps = 4;

  // Keys of [distill], besides steps.
  template <class Self, class Visit>
  static void fields(Self& d, Visit&& visit) {
    visit("shift", d.shift, "of steps and of the times that scores are taken at", 1e-6, 1e6);
    visit("guidance", d.guidance, "of the teacher; 1: it is not guided", 0, 1000);
    visit("student_every", d.every, "updates of the critic for one of the student", 1);
    visit("critic_lr_ratio", d.critic_rate, "learning rate of the critic over the student's", 0,
          1e30);
    visit("rollout", d.rollout, "simulate (the student's own steps) or data_latent", kRollouts);
    visit("renoise", d.renoise, "fresh noise between simulated steps, or predicted", kRenoises);
    visit("min_t", d.min_t, "the first time that scores are taken at", 0, 1);
    visit("max_t", d.max_t, "the last one", 0, 1);
    visit("regression_steps", d.regression_steps, "first steps towards the teacher's own end", 0);
    visit("teacher_steps", d.teacher_steps, "of the teacher in these", 1);
  }

  bool guided() const { return guidance != 1; }
  bool regresses(std::int64_t step) const { return step <= regression_steps; }  // counted from 1
  bool student_due(std::int64_t step) const { return regresses(step) || step % every == 0; }
};

// Fails with ErrorCode::usage where the steps make no schedule.
std::vector<float> sigmas_of(const Dmd2Options& options);  // one for each step, from 1 down

wan::DistilPrograms programs_of(const Dmd2Options& options);

}  // namespace ballast::train
