#include "infer/denoiser.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/random.h"
#include "core/stopwatch.h"
#include "infer/finite_output.h"

namespace ballast::infer {
namespace {

constexpr std::int64_t kMaskChannels = 4;

void check_denoising(const Denoising& what) {
  const wan::Config& c = what.model;
  const wan::LatentSize& z = what.latent;
  const auto refuse = [](std::string text) { fail(ErrorCode::usage, std::move(text)); };
  constexpr std::int64_t kMax = 1 << 14;
  if (z.frames < 1 || z.height < 2 || z.width < 2 || z.height % 2 != 0 || z.width % 2 != 0 ||
      z.frames > kMax || z.height > kMax || z.width > kMax) {
    refuse(fmt::format("a latent of {} x {} x {}: expected frames, even height, even width",
                       z.frames, z.height, z.width));
  }
  for (const double g : what.guidance) {
    if (!(std::abs(g) <= 1e4)) refuse(fmt::format("a guidance of {}", g));
  }
  if (what.experts > 1 && !what.high_noise_steps && !(what.boundary > 0 && what.boundary <= 1)) {
    refuse(fmt::format("a boundary between the experts of {}: expected a number above 0, up to 1",
                       what.boundary));
  }
  if (what.first_frame && c.conditioning() > 0) {
    refuse(fmt::format("{} takes an image as conditioning channels, not as a first frame", c.name));
  }
}

}  // namespace

std::vector<PlannedStep> planned_steps(const Denoising& what) {
  check_denoising(what);
  const Schedule schedule = make_schedule(what.sampler);
  std::vector<PlannedStep> steps;
  for (std::int64_t i = 0; i < schedule.steps(); ++i) {
    const double t = schedule.timesteps[to_size(i)];
    const bool high =
        what.high_noise_steps ? i < *what.high_noise_steps : t >= 1000 * what.boundary;
    const int expert = what.experts > 1 && high ? 1 : 0;
    steps.push_back({.timestep = t, .expert = expert, .guidance = what.guidance[to_size(expert)]});
  }
  return steps;
}

wan::Batch batch_of(const Denoising& what, const PlannedStep& step) {
  return {.latents = std::vector(std::size_t{step.guidance == 1 ? 1u : 2u}, what.latent),
          .timestep_rows = what.first_frame ? 2 : 1};
}

std::vector<wan::Batch> batches_of(const Denoising& what) {
  std::vector<wan::Batch> all;
  for (const PlannedStep& s : planned_steps(what)) {
    wan::Batch batch = batch_of(what, s);
    if (std::ranges::find(all, batch) == all.end()) all.push_back(std::move(batch));
  }
  std::ranges::stable_sort(all, std::greater(),
                           [](const wan::Batch& b) { return b.latents.size(); });
  return all;
}

Bytes denoiser_bytes(const Denoising& what) {
  return Sampler::bytes(what.sampler.solver, what.elements()) + Bytes{8 * what.elements()};
}

void make_noise(std::uint64_t seed, std::int64_t clip, std::span<float> to) {
  fill_normal(random_source(seed, "sample_noise", clip, "latent"), 0, to.data(), std::ssize(to));
}

std::vector<float> image_conditioning(const wan::LatentSize& z,
                                      std::span<const float> clip_latent) {
  const auto cells = to_size(z.cells());
  if (clip_latent.empty() || clip_latent.size() % cells != 0) {
    fail(ErrorCode::input,
         "the image's clip has a latent of {} numbers, no multiple of {} x {} x {}",
         clip_latent.size(), z.frames, z.height, z.width);
  }
  std::vector<float> y(kMaskChannels * cells + clip_latent.size(), 0.0f);
  const std::size_t frame = cells / to_size(z.frames);
  for (std::size_t c = 0; c < kMaskChannels; ++c) std::fill_n(y.data() + c * cells, frame, 1.0f);
  std::ranges::copy(clip_latent, y.begin() + static_cast<std::ptrdiff_t>(kMaskChannels * cells));
  return y;
}

Denoiser::Denoiser(Denoising what, DenoisingNetwork network, std::vector<double> predicted)
    : what_(std::move(what)),
      network_(std::move(network)),
      steps_(planned_steps(what_)),
      predicted_(std::move(predicted)),
      x_(what_.elements()),
      guided_(what_.elements()),
      next_(steps_.size()) {
  predicted_.resize(steps_.size(), 0);
}

const wan::DitPassIo& Denoiser::run_of(const wan::Batch& batch) const {
  const auto run = std::ranges::find(network_.runs, batch, &wan::DitPassIo::batch);
  check(run != network_.runs.end(), "the network has no run of {} samples", batch.latents.size());
  return *run;
}

// Row 0 of the timesteps is the step's, row 1 is 0.
void Denoiser::write_timestep_rows() {
  const wan::LatentSize& z = what_.latent;
  std::vector<std::int32_t> rows(to_size(z.tokens()), 0);
  if (what_.first_frame) std::fill_n(rows.begin(), z.tokens() / z.frames, 1);
  for (const wan::Batch& batch : batches_of(what_)) {
    for (const wan::DitSampleIo& s : run_of(batch).samples) {
      network_.runner.write(s.timestep_row, std::as_bytes(std::span(rows)));
    }
  }
}

void Denoiser::check_inputs(const VideoInputs& in) const {
  const wan::Config& c = what_.model;
  const auto text = [&](const char* what, std::span<const float> rows) {
    const std::int64_t most = c.text_len * c.text_dim;
    if (std::ssize(rows) % c.text_dim == 0 && std::ssize(rows) <= most) return;
    fail(ErrorCode::input, "the {} has {} numbers: expected up to {} rows of {}", what, rows.size(),
         c.text_len, c.text_dim);
  };
  text("prompt", in.prompt);
  text("negative prompt", in.negative);
  const auto count = [&](const char* what, std::span<const float> values, std::int64_t expected) {
    if (std::ssize(values) == expected) return;
    fail(ErrorCode::input, "{} has {} numbers, expected {}", what, values.size(), expected);
  };
  const std::int64_t cells = what_.latent.cells(), frame = cells / what_.latent.frames;
  count("the conditioning", in.conditioning, c.conditioning() * cells);
  count("the first frame", in.first_frame, what_.first_frame ? c.out_dim * frame : 0);
  if (!in.noise.empty()) count("the noise", in.noise, c.out_dim * cells);
}

void Denoiser::put_text(const VideoInputs& in) {
  for (const wan::Batch& batch : batches_of(what_)) {
    const wan::DitPassIo& run = run_of(batch);
    for (std::size_t i = 0; i < run.samples.size(); ++i) {
      const std::span<const float> text = i == 0 ? in.prompt : in.negative;
      const TensorView to = network_.runner.view(run.samples[i].context);
      std::memset(to.data, 0, to.bytes());
      if (!text.empty()) std::memcpy(to.data, text.data(), text.size_bytes());
      if (!run.samples[i].conditioning) continue;
      const TensorView y = network_.runner.view(run.samples[i].conditioning);
      std::memcpy(y.data, in.conditioning.data(), in.conditioning.size_bytes());
    }
  }
}

void Denoiser::hold_first_frame() {  // of every channel
  const auto cells = to_size(what_.latent.cells());
  const std::size_t frame = cells / to_size(what_.latent.frames);
  for (std::size_t c = 0; c * frame < first_frame_.size(); ++c) {
    std::copy_n(first_frame_.data() + c * frame, frame, x_.data() + c * cells);
  }
}

double Denoiser::seconds_left() const {
  double sum = 0;
  for (std::size_t i = next_; i < predicted_.size(); ++i) sum += predicted_[i];
  return sum;
}

void Denoiser::begin(const VideoInputs& inputs) {
  check_inputs(inputs);
  if (inputs.noise.empty()) {
    make_noise(inputs.seed, inputs.clip, x_);
  } else {
    std::ranges::copy(inputs.noise, x_.begin());
  }
  first_frame_ = inputs.first_frame;
  write_timestep_rows();
  put_text(inputs);
  sampler_.emplace(what_.sampler, x_.size());
  next_ = 0;
}

StepReport Denoiser::step() {
  const std::size_t i = next_;
  const PlannedStep& step = steps_[i];
  Runner& runner = network_.runner;
  const Stopwatch begin;
  const bool reads_weights = network_.use_expert(step.expert);
  hold_first_frame();
  const wan::DitPassIo& io = run_of(batch_of(what_, step));
  double* t = runner.view(io.timesteps).as<double>();
  t[0] = step.timestep;
  if (what_.first_frame) t[1] = 0;
  for (const wan::DitSampleIo& s : io.samples) {
    std::memcpy(runner.view(s.latent).data, x_.data(), x_.size() * sizeof(float));
  }
  runner.run(io.programs[to_size(step.expert)]);
  const auto answer = [&](std::size_t sample) {
    return std::span<const float>(runner.view(io.samples[sample].output).as<float>(), x_.size());
  };
  const std::span<const float> cond = answer(0);
  const std::span<const float> uncond = io.samples.size() > 1 ? answer(1) : cond.first(0);
  if (uncond.empty()) {
    std::ranges::copy(cond, guided_.begin());
  } else {
    const auto g = static_cast<float>(step.guidance);
    for (std::size_t e = 0; e < guided_.size(); ++e) {
      guided_[e] = uncond[e] + g * (cond[e] - uncond[e]);
    }
  }
  sampler_->step(guided_, x_);
  require_finite(x_, fmt::format("the latent after step {} of {}", i + 1, steps_.size()));
  const double seconds = begin.seconds();
  if (!reads_weights) {
    for (std::size_t j = i + 1; j < steps_.size() && steps_[j].expert == step.expert; ++j) {
      predicted_[j] = seconds;
    }
  }
  ++next_;
  return {.step = static_cast<std::int64_t>(next_),
          .steps = std::ssize(steps_),
          .planned = step,
          .seconds = seconds,
          .seconds_left = seconds_left(),
          .input = {runner.view(io.samples[0].latent).as<float>(), x_.size()},
          .conditional = cond,
          .unconditional = uncond,
          .guided = guided_,
          .solved = x_};
}

std::span<const float> Denoiser::latent() {
  hold_first_frame();
  return x_;
}

}  // namespace ballast::infer
