#include "app/bench/wan_run.h"

#include <algorithm>

#include "core/random.h"
#include "core/to_size.h"
#include "fit/fill.h"
#include "memory/process_memory.h"

namespace ballast {
namespace {

std::vector<std::byte> random_floats(std::int64_t n, std::uint64_t seed) {
  std::vector<std::byte> bytes(to_size(n) * 4);
  fill_normal(random_source(seed, "bench", 0, "input"), 0, reinterpret_cast<float*>(bytes.data()),
              n);
  return bytes;
}

}  // namespace

void MemoryTimeline::note(const std::string& moment) {
  const auto memory = process_memory();
  all_.push_back({moment, begin_.seconds(), memory ? memory->total() : Bytes{}});
}

nlohmann::ordered_json MemoryTimeline::json() const {
  nlohmann::ordered_json j;
  for (const MemorySample& m : all_) j[m.name] = m.memory.count;
  return j;
}

std::string MemoryTimeline::table() const {
  std::string text;
  for (const MemorySample& m : all_) {
    text += fmt::format("  {:<28} {:9.2f} s  {}\n", m.name, m.seconds, m.memory);
  }
  return text;
}

WanBenchRun::WanBenchRun(const fit::Request& request, const MemoryPolicy& policy,
                         const MemoryPlan& planned, const std::string& folder,
                         MemoryTimeline& timeline)
    : profile_(fit::rates_under(policy, request.profile)), timeline_(timeline) {
  set_.backend = request.backend;
  wan::DitJob job = wan::job_of(request).dit;
  job.policy = policy;
  const RunnerOptions options{.scratch_folder = folder};
  RunMemory memory = Runner::open_memory(set_.backend.device, planned.peak_of(Tier::device),
                                         planned.peak_of(Tier::host), options);
  dit_ = std::make_unique<wan::Dit>(set_, std::move(job), wan::job_of(request).experts);
  plan_ = plan_memory(set_);
  timeline_.note("recorded");
  runner_ = std::make_unique<Runner>(set_, plan_, options, std::move(memory));
  timeline_.note("arenas, libraries");
  double given = 0;
  runner_->run_beside("load", [&] {
    const Stopwatch giving;
    write_adapters();
    write_inputs();
    given = giving.seconds();
  });
  timeline_.note(fmt::format("weights; inputs in {:.2f} s", given));
  if (dit_->job().mode != wan::Mode::infer) runner_->run("init_state");
  timeline_.note("state");
}

void WanBenchRun::step() {
  ++steps_;
  stalled_ = read_ = 0;
  disk_ = {};
  const bool trains = dit_->job().mode != wan::Mode::infer;
  if (dit_->accumulates()) run("zero_gradients");
  set_.checked_reads->take_cost();  // and forgets it
  for (const wan::StepPass& part : dit_->passes(0)) run(dit_->io().runs[part.run].programs[0]);
  if (trains) {
    run("grad_norm");
    run("update");
  }
  verifying_ = set_.checked_reads->take_cost();
}

KernelTimes WanBenchRun::kernels() {
  return kernels_of(*runner_, collect_, [this] { step(); });
}

double WanBenchRun::read_by(const std::string& program) const {
  double bytes = 0;
  const auto p = to_size(set_.program_index(program));
  for (const Instruction& i : set_.programs[p].instructions) {
    if (i.cost.work == Work::disk) bytes += i.cost.bytes;
  }
  return bytes;
}

double WanBenchRun::loss() const {
  return dit_->io().loss ? *runner_->view(dit_->io().loss).as<double>() : 0;
}

void WanBenchRun::write_adapters() {
  if (dit_->job().mode != wan::Mode::lora) return;
  std::vector<std::byte> small;  // as many as the largest factor needs; the others share them
  for (const AdapterIo& a : dit_->io().adapters) {
    for (const Buffer b : {a.a, a.b}) {
      const std::int64_t n = set_.spec(b).shape.elements();
      if (small.size() < to_size(n) * 4) {
        small = random_floats(n, 7);
        auto* values = reinterpret_cast<float*>(small.data());
        for (std::int64_t i = 0; i < n; ++i) values[i] *= 0.01f;
      }
      runner_->write(b, std::span(small).first(to_size(n) * 4));
    }
  }
}

void WanBenchRun::write_inputs() {
  const auto random = [&](Buffer b, std::uint64_t seed) {
    if (b) runner_->write(b, random_floats(set_.spec(b).shape.elements(), seed));
  };
  for (const wan::DitPassIo& run : dit_->io().runs) {
    std::vector<double> times(to_size(set_.spec(run.timesteps).shape[0]), 500);
    runner_->write(run.timesteps, std::as_bytes(std::span(times)));
    for (std::size_t i = 0; i < run.samples.size(); ++i) {
      const wan::DitSampleIo& s = run.samples[i];
      random(s.latent, 1 + i);
      random(s.conditioning, 2 + i);
      random(s.context, 3 + i);
      const float t = 0.5f, weight = 1.0f / static_cast<float>(run.samples.size());
      if (s.noise_fraction) runner_->write(s.noise_fraction, std::as_bytes(std::span(&t, 1)));
      if (s.loss_weight) runner_->write(s.loss_weight, std::as_bytes(std::span(&weight, 1)));
      std::vector<std::int32_t> rows(
          to_size(set_.spec(s.timestep_row).shape[0]),
          static_cast<std::int32_t>(std::min<std::size_t>(i, times.size() - 1)));
      runner_->write(s.timestep_row, std::as_bytes(std::span(rows)));
    }
  }
}

void WanBenchRun::run(const std::string& program) {
  const Stopwatch at;
  runner_->run(program, {.step = steps_, .seed = 1, .learning_rate = 1e-4});
  const auto& lanes = runner_->lane_times();
  const double stalled = lanes[to_size(Lane::compute)].waiting;
  stalled_ += stalled;
  disk_.busy += lanes[to_size(Lane::disk)].busy;
  disk_.waiting += lanes[to_size(Lane::disk)].waiting;
  programs_.add(program, at.seconds(), stalled);
  read_ += read_by(program);
  if (steps_ <= 2) timeline_.note(fmt::format("{} {}", program, steps_));
  if (collect_) collect_->add(*runner_, set_, set_.program_index(program), profile_);
}

}  // namespace ballast
