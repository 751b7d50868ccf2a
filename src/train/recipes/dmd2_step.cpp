#include "train/recipes/dmd2_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/to_size.h"

namespace ballast::train {
namespace {

constexpr std::size_t kStudent = 0, kCritic = 1, kTeacher = 0;

// work(i, noise of element i), a piece at a time.
template <class Work>
void with_noise(const RandomSource& source, std::size_t elements, Work&& work) {
  std::array<float, 1024> noise;
  for (std::size_t first = 0; first < elements; first += noise.size()) {
    const std::size_t count = std::min(noise.size(), elements - first);
    fill_normal(source, first, noise.data(), static_cast<std::int64_t>(count));
    for (std::size_t i = 0; i < count; ++i) work(first + i, static_cast<double>(noise[i]));
  }
}

float mixed(double clean, double noise, double sigma) {
  return static_cast<float>((1 - sigma) * clean + sigma * noise);
}

}  // namespace

Dmd2Step::Dmd2Step(const Dmd2Options& options, const wan::Dit& dit, Runner& runner, RunProgram run)
    : options_(options),
      sigmas_(sigmas_of(options)),
      dit_(dit),
      runner_(runner),
      run_program_(std::move(run)) {}

std::span<float> Dmd2Step::floats(Buffer b) const {
  const TensorView v = runner_.view(b);
  return {v.as<float>(), to_size(v.elements())};
}

RandomSource Dmd2Step::source(const Phase& phase, std::string_view what, std::size_t sample) const {
  return random_source(
      phase.at.seed, fmt::format("dmd2.{}", phase.name), phase.at.step,
      fmt::format("{}.{}", what, phase.at.first + static_cast<std::int64_t>(sample)));
}

void Dmd2Step::set_sigma(const Phase& phase, std::size_t sample, float sigma) const {
  // As samplers tell it the network.
  runner_.view(dit_.io().runs[phase.at.run].timesteps).as<double>()[sample] =
      static_cast<double>(1000.0f * sigma);
}

void Dmd2Step::run(const std::vector<wan::DitPassIo>& runs, const Phase& phase,
                   std::size_t set) const {
  run_program_(runs[phase.at.run].programs[set],
               {.step = phase.at.step, .seed = phase.at.seed, .first_sample = phase.at.first});
}

void Dmd2Step::begin_part(const Dmd2Position& at) {
  if (options_.rollout != Dmd2Options::Rollout::data) return;
  for (const wan::DitSampleIo& io : dit_.io().runs[at.run].samples) {
    std::ranges::copy(floats(io.latent), floats(io.clean).begin());
  }
}

std::size_t Dmd2Step::roll_out(const Phase& phase) {
  const auto& samples = dit_.io().runs[phase.at.run].samples;
  // One end for all samples of a step, whatever shares a run.
  const RandomSource draw =
      random_source(phase.at.seed, fmt::format("dmd2.{}", phase.name), phase.at.step, "end");
  const auto steps = static_cast<double>(sigmas_.size());
  const auto end = to_size(steps * static_cast<double>(uniform(draw.word(0))));
  const bool data = options_.rollout == Dmd2Options::Rollout::data;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const std::span<float> x = floats(samples[i].latent);
    const std::span<float> clean = data ? floats(samples[i].clean) : std::span<float>();
    with_noise(source(phase, "begin", i), x.size(), [&](std::size_t e, double n) {
      x[e] = data ? mixed(clean[e], n, sigmas_[end]) : static_cast<float>(n);
    });
  }
  const auto answer = [&](std::size_t step) {
    for (std::size_t i = 0; i < samples.size(); ++i) set_sigma(phase, i, sigmas_[step]);
    run(dit_.io().predict_passes, phase, kStudent);
  };
  for (std::size_t k = data ? end : 0; k < end; ++k) {
    answer(k);
    const double at = sigmas_[k], to = sigmas_[k + 1];
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const std::span<float> x = floats(samples[i].latent), v = floats(samples[i].output);
      if (options_.renoise == Dmd2Options::Renoise::predicted) {
        for (std::size_t e = 0; e < x.size(); ++e) {
          x[e] = static_cast<float>(x[e] + (to - at) * static_cast<double>(v[e]));
        }
        continue;
      }
      with_noise(source(phase, fmt::format("step{}", k + 1), i), x.size(),
                 [&](std::size_t e, double n) {
                   x[e] = mixed(x[e] - at * static_cast<double>(v[e]), n, to);
                 });
    }
  }
  answer(end);
  for (const wan::DitSampleIo& io : samples) {
    std::ranges::copy(floats(io.latent), floats(io.kept_input).begin());
    std::ranges::copy(floats(io.output), floats(io.kept_answer).begin());
  }
  return end;
}

std::span<const float> Dmd2Step::unguided(const Phase& phase, std::size_t sample) const {
  if (!options_.guided()) return {};
  const std::size_t samples = dit_.io().runs[phase.at.run].samples.size();
  return floats(dit_.io().teacher_passes[phase.at.run].samples[samples + sample].output);
}

double Dmd2Step::guided(std::span<const float> caption, std::span<const float> empty,
                        std::size_t e) const {
  const double v = caption[e];
  if (empty.empty()) return v;
  return empty[e] + options_.guidance * (v - static_cast<double>(empty[e]));
}

// An even draw of whole timesteps, shifted, within the limits.
float Dmd2Step::score_sigma(const Phase& phase, std::size_t sample) const {
  const RandomSource draw = source(phase, "score_time", sample);
  const double t = std::floor(1000 * static_cast<double>(uniform(draw.word(0)))) / 1000;
  const double shifted = options_.shift * t / (1 + (options_.shift - 1) * t);
  return static_cast<float>(std::clamp(shifted, options_.min_t, options_.max_t));
}

std::vector<float> Dmd2Step::critic_scores(const Dmd2Position& at) const {
  std::vector<float> all;
  for (std::int64_t i = 0; i < at.samples; ++i) {
    all.push_back(score_sigma({at, "critic"}, to_size(i)));
  }
  return all;
}

void Dmd2Step::critic(const Dmd2Position& at) {
  const Phase phase = {at, "critic"};
  const double s = sigmas_[roll_out(phase)];
  scores_.clear();
  const auto& samples = dit_.io().runs[at.run].samples;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const wan::DitSampleIo& io = samples[i];
    const float score = scores_.emplace_back(score_sigma(phase, i));
    const std::span<const float> input = floats(io.kept_input), answer = floats(io.kept_answer);
    const std::span<float> noisy = floats(io.latent), target = floats(io.target);
    with_noise(source(phase, "score", i), noisy.size(), [&](std::size_t e, double n) {
      const double x = input[e] - s * static_cast<double>(answer[e]);
      noisy[e] = mixed(x, n, score);
      target[e] = static_cast<float>(n - x);
    });
    *runner_.view(io.loss_weight).as<float>() = 1.0f / static_cast<float>(at.samples);
    set_sigma(phase, i, score);
  }
  run(dit_.io().runs, phase, kCritic);
}

double Dmd2Step::student(const Dmd2Position& at) {
  const Phase phase = {at, "student"};
  const float s = sigmas_[roll_out(phase)];
  scores_.clear();
  const auto& samples = dit_.io().runs[at.run].samples;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const wan::DitSampleIo& io = samples[i];
    const float score = scores_.emplace_back(score_sigma(phase, i));
    const std::span<const float> input = floats(io.kept_input), answer = floats(io.kept_answer);
    const std::span<float> noisy = floats(io.latent);
    with_noise(source(phase, "score", i), noisy.size(), [&](std::size_t e, double n) {
      noisy[e] = mixed(input[e] - static_cast<double>(s) * answer[e], n, score);
    });
    set_sigma(phase, i, score);
  }
  run(dit_.io().predict_passes, phase, kCritic);
  for (const wan::DitSampleIo& io : samples) {
    std::ranges::copy(floats(io.output), floats(io.target).begin());
  }
  run(dit_.io().teacher_passes, phase, kTeacher);
  double loss = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const wan::DitSampleIo& io = samples[i];
    loss += pull(io, unguided(phase, i), s, scores_[i]);
    std::ranges::copy(floats(io.kept_input), floats(io.latent).begin());
    *runner_.view(io.loss_weight).as<float>() = 1.0f / static_cast<float>(at.samples);
    set_sigma(phase, i, s);
  }
  run(dit_.io().runs, phase, kStudent);
  return loss / static_cast<double>(at.samples);
}

double Dmd2Step::regress(const Dmd2Position& at) {
  const Phase phase = {at, "student"};
  const std::size_t end = roll_out(phase);
  const auto& samples = dit_.io().runs[at.run].samples;
  const double from = sigmas_[end], to = end + 1 < sigmas_.size() ? sigmas_[end + 1] : 0;
  const auto sigma = [&](std::int64_t k) {
    const double way = static_cast<double>(k) / static_cast<double>(options_.teacher_steps);
    return static_cast<float>(from + (to - from) * way);
  };
  for (std::int64_t k = 0; k < options_.teacher_steps; ++k) {  // from kept_input, still in latent
    for (std::size_t i = 0; i < samples.size(); ++i) set_sigma(phase, i, sigma(k));
    run(dit_.io().teacher_passes, phase, kTeacher);
    const double change = static_cast<double>(sigma(k + 1)) - static_cast<double>(sigma(k));
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const std::span<float> x = floats(samples[i].latent);
      const std::span<const float> caption = floats(samples[i].output), empty = unguided(phase, i);
      for (std::size_t e = 0; e < x.size(); ++e) {
        x[e] = static_cast<float>(x[e] + change * guided(caption, empty, e));
      }
    }
  }
  // The student's program takes the gradient of an MSE whose prediction is zero.
  double loss = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const wan::DitSampleIo& io = samples[i];
    const std::span<float> x = floats(io.latent), target = floats(io.target);
    const std::span<const float> input = floats(io.kept_input), answer = floats(io.kept_answer);
    double squares = 0;
    for (std::size_t e = 0; e < target.size(); ++e) {
      const double aim = (static_cast<double>(x[e]) - static_cast<double>(input[e])) / (to - from);
      target[e] = static_cast<float>(aim - static_cast<double>(answer[e]));
      squares += static_cast<double>(target[e]) * static_cast<double>(target[e]);
    }
    loss += squares / static_cast<double>(target.size());
    std::ranges::copy(input, x.begin());
    *runner_.view(io.loss_weight).as<float>() = 1.0f / static_cast<float>(at.samples);
    set_sigma(phase, i, sigmas_[end]);
  }
  run(dit_.io().runs, phase, kStudent);
  return loss / static_cast<double>(at.samples);
}

// From the critic's answer in target to s g / 2 there.
double Dmd2Step::pull(const wan::DitSampleIo& io, std::span<const float> empty, double s,
                      double score) {
  const std::span<const float> input = floats(io.kept_input), answer = floats(io.kept_answer);
  const std::span<const float> noisy = floats(io.latent), caption = floats(io.output);
  const std::span<float> target = floats(io.target);
  const auto real = [&](std::size_t e) { return noisy[e] - score * guided(caption, empty, e); };
  double distance = 0;
  for (std::size_t e = 0; e < target.size(); ++e) {
    distance += std::abs(input[e] - s * static_cast<double>(answer[e]) - real(e));
  }
  distance /= static_cast<double>(target.size());
  double squares = 0;
  for (std::size_t e = 0; e < target.size(); ++e) {
    const double fake = noisy[e] - score * static_cast<double>(target[e]);
    double g = (fake - real(e)) / distance;
    if (!std::isfinite(g)) g = 0;
    squares += g * g;
    target[e] = static_cast<float>(s * g / 2);
  }
  return squares / 2 / static_cast<double>(target.size());
}

}  // namespace ballast::train
