#include "infer/video_sampler.h"

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/random.h"
#include "memory/gpu.h"
#include "ops/sgemm.h"

namespace ballast::infer {
namespace {

// What the loop has beside arenas and latents: programs' names, the schedule, messages.
constexpr Bytes kLoopBytes = 1_MiB;
constexpr std::int64_t kMaskChannels = 4;

double now_seconds() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

std::size_t elements_of(const VideoJob& job) {
  return static_cast<std::size_t>(job.fit.job.config.out_dim * job.latent.cells());
}

int experts_of(const VideoJob& job) { return static_cast<int>(job.fit.experts.size()); }

void check_job(const VideoJob& job) {
  const wan::Config& c = job.fit.job.config;
  const wan::LatentSize& z = job.latent;
  const auto refuse = [](std::string what) { fail(ErrorCode::usage, std::move(what)); };
  constexpr std::int64_t kMost = 1 << 14;
  if (z.frames < 1 || z.height < 2 || z.width < 2 || z.height % 2 != 0 || z.width % 2 != 0 ||
      z.frames > kMost || z.height > kMost || z.width > kMost) {
    refuse(fmt::format("a latent of {} x {} x {}: expected frames, even height, even width",
                       z.frames, z.height, z.width));
  }
  for (const double g : job.guidance) {
    if (!(std::abs(g) <= 1e4)) refuse(fmt::format("a guidance of {}", g));
  }
  if (experts_of(job) > 1 && !job.high_noise_steps && !(job.boundary > 0 && job.boundary <= 1)) {
    refuse(fmt::format("a boundary between the experts of {}: expected a number above 0, up to 1",
                       job.boundary));
  }
  if (job.first_frame && c.conditioning() > 0) {
    refuse(fmt::format("{} takes an image as conditioning channels, not as a first frame", c.name));
  }
}

wan::Batch batch_for(const VideoJob& job, std::size_t samples) {
  return {.latents = std::vector(samples, job.latent), .timestep_rows = job.first_frame ? 2 : 1};
}

std::size_t samples_of(const PlannedStep& s) { return s.guidance == 1 ? 1 : 2; }

std::vector<wan::Batch> batches_of(const VideoJob& job, const std::vector<PlannedStep>& steps) {
  std::vector<wan::Batch> all;
  for (const std::size_t samples : {std::size_t{2}, std::size_t{1}}) {
    if (std::ranges::any_of(steps,
                            [&](const PlannedStep& s) { return samples_of(s) == samples; })) {
      all.push_back(batch_for(job, samples));
    }
  }
  return all;
}

double program_seconds(const wan::PlannedRun& planned, const std::string& name) {
  return planned.times[static_cast<std::size_t>(planned.set.program_index(name))].seconds;
}

// The program of a step, by the order of batches_of().
std::string program_of(const VideoJob& job, const std::vector<PlannedStep>& steps,
                       const PlannedStep& step) {
  const std::vector<wan::Batch> batches = batches_of(job, steps);
  const auto kind = std::ranges::find(batches, batch_for(job, samples_of(step))) - batches.begin();
  return wan::expert_program(kind == 0 ? "step" : fmt::format("step.{}", kind), step.expert);
}

std::vector<double> step_seconds(const VideoJob& job, const std::vector<PlannedStep>& steps,
                                 const wan::PlannedRun& planned) {
  std::vector<double> all;
  int expert = -1;
  for (const PlannedStep& s : steps) {
    double seconds = program_seconds(planned, program_of(job, steps, s));
    if (s.expert != expert) {
      seconds += program_seconds(planned, wan::expert_program("load", s.expert));
    }
    expert = s.expert;
    all.push_back(seconds);
  }
  return all;
}

}  // namespace

std::vector<PlannedStep> planned_steps(const VideoJob& job) {
  check_job(job);
  const Schedule schedule = make_schedule(job.sampler);
  std::vector<PlannedStep> steps;
  for (std::int64_t i = 0; i < schedule.steps(); ++i) {
    const double t = schedule.timesteps[static_cast<std::size_t>(i)];
    const bool high = job.high_noise_steps ? i < *job.high_noise_steps : t >= 1000 * job.boundary;
    const int expert = experts_of(job) > 1 && high ? 1 : 0;
    steps.push_back({.timestep = t,
                     .expert = expert,
                     .guidance = job.guidance[static_cast<std::size_t>(expert)]});
  }
  return steps;
}

wan::FitRequest fit_request(const VideoJob& job) {
  const std::vector<PlannedStep> steps = planned_steps(job);
  wan::FitRequest r = job.fit;
  r.job.mode = wan::Mode::infer;
  r.job.noising = wan::Noising::given;
  r.job.batches = batches_of(job, steps);
  double loads = 1;
  for (std::size_t i = 1; i < steps.size(); ++i) loads += steps[i].expert != steps[i - 1].expert;
  r.expert_changes = loads / static_cast<double>(steps.size());
  const AdapterStack adapters(r.job.config, job.loras, experts_of(job));
  adapters.apply(r.job);
  if (!adapters.empty()) {
    r.other_lines.push_back({"LoRA reader", adapters.reading_bytes(), "factors on their way"});
  }
  const std::size_t elements = elements_of(job);
  r.other_lines.push_back(
      {"sampler", Sampler::bytes(job.sampler.solver, elements) + Bytes{8 * elements} + kLoopBytes,
       "the latent, the guided answer, what the solver keeps"});
  return r;
}

double predicted_seconds(const VideoJob& job, const wan::PlannedRun& planned) {
  double sum = 0;
  for (const double s : step_seconds(job, planned_steps(job), planned)) sum += s;
  return sum;
}

void make_noise(std::uint64_t seed, std::int64_t clip, std::span<float> to) {
  fill_normal(random_source(seed, "sample_noise", clip, "latent"), 0, to.data(), std::ssize(to));
}

std::vector<float> image_conditioning(const wan::LatentSize& z,
                                      std::span<const float> clip_latent) {
  const auto cells = static_cast<std::size_t>(z.cells());
  if (clip_latent.empty() || clip_latent.size() % cells != 0) {
    fail(ErrorCode::input,
         fmt::format("the image's clip has a latent of {} numbers, no multiple of {} x {} x {}",
                     clip_latent.size(), z.frames, z.height, z.width));
  }
  std::vector<float> y(kMaskChannels * cells + clip_latent.size(), 0.0f);
  const std::size_t frame = cells / static_cast<std::size_t>(z.frames);
  for (std::size_t c = 0; c < kMaskChannels; ++c) std::fill_n(y.data() + c * cells, frame, 1.0f);
  std::ranges::copy(clip_latent, y.begin() + static_cast<std::ptrdiff_t>(kMaskChannels * cells));
  return y;
}

VideoSampler::VideoSampler(VideoJob job, wan::PlannedRun planned)
    : job_(std::move(job)),
      steps_(planned_steps(job_)),
      adapters_(job_.fit.job.config, job_.loras, experts_of(job_)),
      predicted_(step_seconds(job_, steps_, planned)) {
  wan::FitRequest request = fit_request(job_);
  request.job.policy = planned.policy;
  const Bytes device = planned.plan.peak_of(Tier::device), host = planned.plan.peak_of(Tier::host);
  planned = {};  // its recording is the same as the one that follows, without kernels
  malloc_trim(0);
  set_.backend = request.backend;
  dit_ = std::make_unique<wan::Dit>(set_, std::move(request.job), request.experts);
  plan_ = plan_memory(set_);
  check(plan_.peak_of(Tier::device) == device && plan_.peak_of(Tier::host) == host,
        "planned {} and {}, recorded {} and {}", device, host, plan_.peak_of(Tier::device),
        plan_.peak_of(Tier::host));
  const bool gpu = set_.backend.device == Device::cuda;
  if (gpu) open_gpu();
  runner_ = std::make_unique<Runner>(set_, plan_);
  if (!gpu) ops::warm_up_blas(runner_->compute_threads());
  adapters_.fill(*dit_, *runner_);
  give_timestep_rows();
  x_.resize(elements_of(job_));
  guided_.resize(elements_of(job_));
}

// Row 0 of the timesteps is the step's, row 1 is 0.
void VideoSampler::give_timestep_rows() {
  std::vector<std::int32_t> rows(static_cast<std::size_t>(job_.latent.tokens()), 0);
  if (job_.first_frame) std::fill_n(rows.begin(), job_.latent.tokens() / job_.latent.frames, 1);
  for (const wan::DitRunIo& run : dit_->io().runs) {
    for (const wan::DitSampleIo& s : run.samples) {
      runner_->write(s.timestep_row, std::as_bytes(std::span(rows)));
    }
  }
}

void VideoSampler::use_expert(int expert) {
  if (expert == expert_) return;
  runner_->run(wan::expert_program("load", expert));
  expert_ = expert;
  ++changes_;
}

const wan::DitRunIo& VideoSampler::run_of(const PlannedStep& step) const {
  const auto& runs = dit_->io().runs;
  return *std::ranges::find(runs, batch_for(job_, samples_of(step)), &wan::DitRunIo::batch);
}

void VideoSampler::check_inputs(const VideoInputs& in) const {
  const wan::Config& c = job_.fit.job.config;
  const auto text = [&](const char* what, std::span<const float> rows) {
    const std::int64_t most = c.text_len * c.text_dim;
    if (std::ssize(rows) % c.text_dim == 0 && std::ssize(rows) <= most) return;
    fail(ErrorCode::input, fmt::format("the {} has {} numbers: expected up to {} rows of {}", what,
                                       rows.size(), c.text_len, c.text_dim));
  };
  text("prompt", in.prompt);
  text("negative prompt", in.negative);
  const auto count = [&](const char* what, std::span<const float> values, std::int64_t expected) {
    if (std::ssize(values) == expected) return;
    fail(ErrorCode::input,
         fmt::format("{} has {} numbers, expected {}", what, values.size(), expected));
  };
  const std::int64_t cells = job_.latent.cells(), frame = cells / job_.latent.frames;
  count("the conditioning", in.conditioning, c.conditioning() * cells);
  count("the first frame", in.first_frame, job_.first_frame ? c.out_dim * frame : 0);
  if (!in.noise.empty()) count("the noise", in.noise, c.out_dim * cells);
}

void VideoSampler::put_text(const VideoInputs& in) {
  for (const wan::DitRunIo& run : dit_->io().runs) {
    for (std::size_t i = 0; i < run.samples.size(); ++i) {
      const std::span<const float> text = i == 0 ? in.prompt : in.negative;
      const TensorView to = runner_->view(run.samples[i].context);
      std::memset(to.data, 0, to.bytes());
      if (!text.empty()) std::memcpy(to.data, text.data(), text.size_bytes());
      if (!run.samples[i].conditioning) continue;
      const TensorView y = runner_->view(run.samples[i].conditioning);
      std::memcpy(y.data, in.conditioning.data(), in.conditioning.size_bytes());
    }
  }
}

double VideoSampler::seconds_left(std::size_t from) const {
  double sum = 0;
  for (std::size_t i = from; i < predicted_.size(); ++i) sum += predicted_[i];
  return sum;
}

std::vector<float> VideoSampler::run(const VideoInputs& inputs, const OnStep& on_step) {
  check_inputs(inputs);
  if (inputs.noise.empty()) {
    make_noise(inputs.seed, inputs.clip, x_);
  } else {
    std::ranges::copy(inputs.noise, x_.begin());
  }
  const wan::LatentSize& z = job_.latent;
  const auto hold_first_frame = [&] {  // of every channel
    const auto cells = static_cast<std::size_t>(z.cells());
    const std::size_t frame = cells / static_cast<std::size_t>(z.frames);
    for (std::size_t c = 0; c * frame < inputs.first_frame.size(); ++c) {
      std::copy_n(inputs.first_frame.data() + c * frame, frame, x_.data() + c * cells);
    }
  };
  hold_first_frame();
  put_text(inputs);
  Sampler sampler(job_.sampler, x_.size());
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const PlannedStep& step = steps_[i];
    const double begin = now_seconds();
    const bool changes = step.expert != expert_;
    use_expert(step.expert);
    const wan::DitRunIo& io = run_of(step);
    double* t = runner_->view(io.timesteps).as<double>();
    t[0] = step.timestep;
    if (job_.first_frame) t[1] = 0;
    for (const wan::DitSampleIo& s : io.samples) {
      std::memcpy(runner_->view(s.latent).data, x_.data(), x_.size() * sizeof(float));
    }
    runner_->run(io.programs[static_cast<std::size_t>(step.expert)]);
    const auto answer = [&](std::size_t sample) {
      return std::span<const float>(runner_->view(io.samples[sample].output).as<float>(),
                                    x_.size());
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
    sampler.step(guided_, x_);
    const double seconds = now_seconds() - begin;
    if (!changes) {
      for (std::size_t j = i + 1; j < steps_.size() && steps_[j].expert == step.expert; ++j) {
        predicted_[j] = seconds;
      }
    }
    if (on_step) {
      const TensorView in = runner_->view(io.samples[0].latent);
      on_step({.step = static_cast<std::int64_t>(i) + 1,
               .steps = std::ssize(steps_),
               .planned = step,
               .seconds = seconds,
               .seconds_left = seconds_left(i + 1),
               .input = {in.as<float>(), x_.size()},
               .conditional = cond,
               .unconditional = uncond,
               .guided = guided_,
               .solved = x_});
    }
    hold_first_frame();
  }
  return x_;
}

}  // namespace ballast::infer
