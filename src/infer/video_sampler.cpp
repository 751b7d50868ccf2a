#include "infer/video_sampler.h"

#include <malloc.h>

#include <algorithm>

#include "core/error.h"
#include "core/to_size.h"
#include "memory/gpu.h"
#include "ops/linear/sgemm.h"

namespace ballast::infer {
namespace {

// What the loop has beside arenas and latents: programs' names, the schedule, messages.
constexpr Bytes kLoopBytes = 1_MiB;

int experts_of(const VideoJob& job) {
  return static_cast<int>(wan::job_of(job.request).experts.size());
}

double program_seconds(const fit::PlannedRun& planned, const std::string& name) {
  return planned.times[to_size(planned.set.program_index(name))].seconds;
}

// The program of a step, by the order of batches_of().
std::string program_of(const Denoising& what, const PlannedStep& step) {
  const std::vector<wan::Batch> batches = batches_of(what);
  const auto kind = std::ranges::find(batches, batch_of(what, step)) - batches.begin();
  return wan::expert_program(wan::run_program("step", to_size(kind)), step.expert);
}

std::vector<double> step_seconds(const VideoJob& job, const fit::PlannedRun& planned) {
  const Denoising what = denoising_of(job);
  std::vector<double> all;
  int expert = -1;
  for (const PlannedStep& s : planned_steps(what)) {
    double seconds = program_seconds(planned, program_of(what, s));
    if (s.expert != expert) {
      seconds += program_seconds(planned, wan::expert_program("load", s.expert));
    }
    expert = s.expert;
    all.push_back(seconds);
  }
  return all;
}

}  // namespace

Denoising denoising_of(const VideoJob& job) {
  return {.model = wan::job_of(job.request).dit.config,
          .experts = experts_of(job),
          .sampler = job.sampler,
          .latent = job.latent,
          .guidance = job.guidance,
          .boundary = job.boundary,
          .high_noise_steps = job.high_noise_steps,
          .first_frame = job.first_frame};
}

std::vector<PlannedStep> planned_steps(const VideoJob& job) {
  return planned_steps(denoising_of(job));
}

fit::Request fit_request(const VideoJob& job) {
  const std::vector<PlannedStep> steps = planned_steps(job);
  fit::Request r = job.request;
  wan::job_of(r).dit.mode = wan::Mode::infer;
  wan::job_of(r).dit.noising = wan::Noising::given;
  wan::job_of(r).dit.batches = batches_of(denoising_of(job));
  double loads = 1;
  for (std::size_t i = 1; i < steps.size(); ++i) loads += steps[i].expert != steps[i - 1].expert;
  wan::job_of(r).expert_changes = loads / static_cast<double>(steps.size());
  const AdapterStack adapters(wan::job_of(r).dit.config, job.loras, experts_of(job));
  adapters.apply(wan::job_of(r).dit);
  if (!adapters.empty()) {
    r.other_lines.push_back({"LoRA reader", adapters.reading_bytes(), "factors on their way"});
  }
  r.other_lines.push_back({"sampler", denoiser_bytes(denoising_of(job)) + kLoopBytes,
                           "the latent, the guided answer, what the solver keeps"});
  return r;
}

double predicted_seconds(const VideoJob& job, const fit::PlannedRun& planned) {
  double sum = 0;
  for (const double s : step_seconds(job, planned)) sum += s;
  return sum;
}

VideoSampler::VideoSampler(VideoJob job, fit::PlannedRun planned)
    : job_(std::move(job)),
      adapters_(wan::job_of(job_.request).dit.config, job_.loras, experts_of(job_)) {
  std::vector<double> predicted = step_seconds(job_, planned);
  fit::Request request = fit_request(job_);
  wan::job_of(request).dit.policy = planned.policy;
  const Bytes device = planned.plan.peak_of(Tier::device), host = planned.plan.peak_of(Tier::host);
  planned = {};  // its recording is the same as the one that follows, without kernels
  malloc_trim(0);
  set_.backend = request.backend;
  dit_ = std::make_unique<wan::Dit>(set_, std::move(wan::job_of(request).dit),
                                    wan::job_of(request).experts);
  plan_ = plan_memory(set_);
  check(plan_.peak_of(Tier::device) == device && plan_.peak_of(Tier::host) == host,
        "planned {} and {}, recorded {} and {}", device, host, plan_.peak_of(Tier::device),
        plan_.peak_of(Tier::host));
  const bool gpu = set_.backend.device == Device::cuda;
  if (gpu) open_gpu();
  runner_ = std::make_unique<Runner>(set_, plan_);
  if (!gpu) ops::warm_up_blas(runner_->compute_threads());
  adapters_.fill(*dit_, *runner_);
  denoiser_.emplace(denoising_of(job_),
                    DenoisingNetwork{.runner = *runner_,
                                     .runs = dit_->io().runs,
                                     .use_expert = [this](int e) { return use_expert(e); }},
                    std::move(predicted));
}

bool VideoSampler::use_expert(int expert) {
  if (expert == expert_) return false;
  runner_->run(wan::expert_program("load", expert));
  expert_ = expert;
  ++changes_;
  return true;
}

std::vector<float> VideoSampler::run(const VideoInputs& inputs, const OnStep& on_step) {
  denoiser_->begin(inputs);
  while (!denoiser_->done()) {
    const StepReport report = denoiser_->step();
    if (on_step) on_step(report);
  }
  const std::span<const float> latent = denoiser_->latent();
  return {latent.begin(), latent.end()};
}

}  // namespace ballast::infer
