#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>

#include "app/bench/benches.h"
#include "app/bench/random_weights.h"
#include "app/bench/wan_result.h"
#include "app/bench/wan_run.h"
#include "app/machine_flags.h"
#include "app/output.h"
#include "app/planning.h"
#include "core/error.h"
#include "core/log.h"
#include "core/stopwatch.h"
#include "core/to_size.h"
#include "fit/fit.h"
#include "memory/disk_speed.h"
#include "memory/gpu.h"
#include "models/wan/fit_job.h"
#include "nn/machine_options.h"

namespace ballast {
namespace {

// What one forward pass counts as, by the convention that published speeds use: projections of
// tokens and text, then both attentions.
double forward_flops(const wan::Config& c, std::int64_t tokens) {
  const auto l = static_cast<double>(tokens), d = static_cast<double>(c.dim);
  const auto f = static_cast<double>(c.ffn_dim), s = static_cast<double>(c.text_len);
  return static_cast<double>(c.layers) *
         (12 * l * d * d + 4 * l * d * f + 4 * s * d * d + 4 * l * l * d + 4 * l * s * d);
}

// One image whose rows and columns of tokens are as equal as can be.
wan::LatentSize latent_of(std::int64_t tokens) {
  std::int64_t rows = static_cast<std::int64_t>(std::sqrt(static_cast<double>(tokens)));
  while (rows > 1 && tokens % rows != 0) --rows;
  return {.frames = 1, .height = 2 * rows, .width = 2 * (tokens / rows)};
}

// ballast bench wan: plans and runs the real programs on random weights, and prints what was
// planned and predicted beside what was measured.
class BenchWan : public Command {
 public:
  void declare(CLI::App& app) override;
  void run() override;

 private:
  fit::Request request() const;
  MemoryPolicy policy(const fit::Request& r) const;

  using DiskAlone = std::function<double()>;  // bytes per second; 0: nothing is read from it
  WanBenchResult described(const fit::Request& r) const;  // what is known before anything runs
  void add_first_step(WanBenchResult& result, const WanBenchRun& bench,
                      const DiskAlone& disk_alone) const;
  void time_steps(WanBenchResult& result, WanBenchRun& bench, const DiskAlone& disk_alone) const;

  std::string model_ = "14B", mode_ = "infer", stream_ = "0", from_ = "host", weights_ = "bf16";
  std::string activations_ = "attention-kept", folder_ = "/tmp", file_;
  std::int64_t tokens_ = 7168, rank_ = 16, batch_ = 1, slots_ = 2, matrices_ahead_ = 0, steps_ = 5,
               heads_ = 0;
  std::int64_t chunk_ = 0, kept_ = 0, disk_groups_ = 0;
  double disk_trial_ = 1.5;
  bool auto_ = false, offload_ = false, kernels_ = false;
  bool state_on_host_ = false, fp8_matmul_ = false, split_backward_ = false;
  MachineOptions machine_;
};

void BenchWan::declare(CLI::App& app) {
  app.add_option("--model", model_, "14B, 5B, or the name of a preset");
  app.add_option("--tokens", tokens_, "video tokens of a sample")->check(CLI::Range(4, 1 << 20));
  app.add_option("--mode", mode_, "infer, lora or full")
      ->check(CLI::IsMember({"infer", "lora", "full"}));
  app.add_option("--stream", stream_, "blocks that pass through slots: a number, or all");
  app.add_option("--from", from_, "where streamed weights come from: host or disk")
      ->check(CLI::IsMember({"host", "disk"}));
  app.add_option("--slots", slots_, "slots of streamed weights")->check(CLI::Range(1, 64));
  app.add_option("--matrix-streaming,--parts", matrices_ahead_,
                 "stream matrix by matrix, so many ahead; 0: whole slots")
      ->check(CLI::Range(0, 64));
  app.add_flag("--split-backward,--halves", split_backward_,
               "backward restores half a block at a time");
  app.add_option("--weights", weights_, "bf16 or fp8")->check(CLI::IsMember({"bf16", "fp8"}));
  app.add_flag("--fp8-matmul", fp8_matmul_, "matrix products of blocks in fp8");
  app.add_option("--activations", activations_, "kept, attention-kept or recomputed")
      ->check(CLI::IsMember({"kept", "attention-kept", "recomputed"}));
  app.add_option("--kept-blocks", kept_, "blocks that keep everything, evenly spaced");
  app.add_flag("--offload", offload_, "what blocks keep waits in RAM");
  app.add_flag("--state-on-host", state_on_host_, "gradients and moments wait in RAM");
  app.add_option("--state-on-disk", disk_groups_, "groups whose moments and masters wait on disk");
  app.add_option("--chunk", chunk_, "tokens worked on at once (0: all)");
  app.add_option("--heads", heads_, "heads at a time in attention (0: all)");
  app.add_flag("--auto", auto_, "the fastest predicted policy inside --gpu and --ram");
  app.add_option("--rank", rank_, "of the LoRA")->check(CLI::Range(1, 1024));
  app.add_option("--batch", batch_, "samples of a step")->check(CLI::Range(1, 64));
  declare_machine(app, machine_,
                  {"non_deterministic", "verify_weights", "gpu", "ram", "disk", "json"});
  app.add_option("--steps", steps_, "timed steps, after two that are not")
      ->check(CLI::Range(1, 1000));
  app.add_option("--folder", folder_, "where the file of random weights goes, and state on disk");
  app.add_option("--file", file_,
                 "a file of random weights that is kept, and used where it is there already");
  app.add_option("--disk-trial", disk_trial_, "seconds for which the disk alone is measured")
      ->check(CLI::Range(0.1, 60.0));
  app.add_flag("--kernels", kernels_, "a table of what takes the time, by operation");
}

fit::Request BenchWan::request() const {
  fit::Request r = {.job = wan::FitJob()};
  wan::DitJob& job = wan::job_of(r).dit;
  const std::string name = model_ == "14B"  ? "wan2.2-t2v-a14b"
                           : model_ == "5B" ? "wan2.2-ti2v-5b"
                                            : model_;
  const auto preset = wan::find_preset(name);
  if (!preset) fail_unknown("--model", model_, {"14B", "5B", "wan2.1-t2v-1.3b"});
  job.config = *preset;
  job.config.experts = 1;
  job.mode = mode_ == "infer"  ? wan::Mode::infer
             : mode_ == "lora" ? wan::Mode::lora
                               : wan::Mode::full;
  const train::RunTarget target = train::this_machine(machine_);
  r.profile = target.profile;
  r.backend = target.backend;
  job.precision = precision_on(r.backend.device);
  job.batches = {
      {.latents = std::vector(to_size(batch_), latent_of(tokens_)), .timestep_rows = batch_}};
  if (job.mode != wan::Mode::infer) job.noising = wan::Noising::recorded;
  job.lora.rank = rank_;
  job.lora.alpha = static_cast<float>(rank_);
  job.record_update = job.mode != wan::Mode::infer;
  job.max_grad_norm = 1;
  if (fp8_matmul_) use_fp8_products(job, r.backend);
  r.budget = train::resolve_budget(target, machine_);
  return r;
}

MemoryPolicy BenchWan::policy(const fit::Request& r) const {
  MemoryPolicy p;
  p.name = "bench";
  const auto groups = static_cast<int>(wan::job_of(r).dit.config.layers) + 2;
  int streamed = 0;
  if (stream_ == "all") {
    streamed = groups;
  } else {
    const auto end = std::from_chars(stream_.data(), stream_.data() + stream_.size(), streamed);
    if (end.ec != std::errc() || *end.ptr != 0 || streamed < 0 || streamed > groups - 2) {
      fail(ErrorCode::usage, "--stream {}: expected 0 to {}, or all", stream_, groups - 2);
    }
  }
  if (streamed > 0) {
    // The head is the first group that stays, the embeddings are the last.
    p.streaming =
        Streaming{.slots = static_cast<int>(slots_),
                  .matrices_ahead = static_cast<int>(matrices_ahead_),
                  .resident_groups = streamed < groups ? groups - 1 - streamed : 0,
                  .stream_from = from_ == "disk" ? StreamSource::disk : StreamSource::host};
  }
  p.split_backward = split_backward_;
  p.activations = activations_ == "kept"         ? Activations::kept
                  : activations_ == "recomputed" ? Activations::recomputed
                                                 : Activations::attention_kept;
  p.kept_blocks = static_cast<int>(kept_);
  p.offload = offload_;
  p.chunk_tokens = chunk_;
  p.heads_per_group = heads_;
  p.state_on_host = state_on_host_;
  p.disk_state_groups = static_cast<int>(disk_groups_);
  return p;
}

void BenchWan::run() {
  const Stopwatch start;
  MemoryTimeline timeline;
  timeline.note("start");
  fit::Request r = request();
  const bool gpu = r.backend.device == Device::cuda;
  GpuInfo info;
  if (gpu) info = open_gpu();
  timeline.note("GPU opened");
  const Stopwatch aside;  // no part of a run: the weights are there, and nobody measures the disk
  const bool whole = from_ == "disk" && stream_ != "0";
  const RandomWeights weights(wan::job_of(r).dit.config,
                              weights_ == "fp8" ? DType::f8_e4m3 : DType::bf16,
                              whole ? RandomWeights::Blocks::each : RandomWeights::Blocks::alike,
                              {.folder = folder_, .kept = file_});
  wan::job_of(r).experts = {weights.groups()};
  WanBenchResult result = described(r);
  result.weights_file = weights.bytes();
  const DiskAlone disk_alone = [&] {
    return whole ? measure_streaming(weights.path(), result.readers, disk_trial_).read : 0;
  };
  result.first.disk_before = disk_alone();
  const double aside_seconds = aside.seconds();
  const auto since_start = [&] { return start.seconds() - aside_seconds; };
  timeline.note("weights written");
  const fit::PlannedRun planned = auto_ ? fitting_plan(r) : fit::plan_run(r, policy(r));
  timeline.note("planned");
  result.first.planned = since_start();
  WanBenchRun bench(r, planned.policy, planned.plan, folder_, timeline);
  result.first.loaded = since_start();
  bench.step();
  result.first.done = since_start();
  add_first_step(result, bench, disk_alone);
  time_steps(result, bench, disk_alone);
  result.policy = planned.policy.name;
  result.predicted = planned.seconds_per_step();
  result.opening = bench.runner().opening();
  result.memory = memory_use(planned, bench.plan(), bench.runner(), gpu ? &info : nullptr);
  timeline.note("end");
  result.memory.host_used = timeline.now();
  result.host_by_moment = timeline.json();
  if (result.first.disk_before > 0) {
    // With what the disk gave just before; what planning takes is not the run's.
    r.profile.disk_bandwidth = result.first.disk_before;
    result.first.predicted_step = fit::plan_run(r, planned.policy).seconds_per_step();
  }
  result.programs = bench.programs();
  if (kernels_ && gpu) result.kernels = bench.kernels();
  result.timeline = timeline.table();
  if (machine_.json) return print(result.json().dump(2) + "\n");
  print(result.text());
  if (kernels_) print(result.details());
}

WanBenchResult BenchWan::described(const fit::Request& r) const {
  const wan::DitJob& job = wan::job_of(r).dit;
  WanBenchResult result;
  result.model = job.config.name;
  result.mode = mode_;
  result.verify_weights = option_text(machine_.verify_weights);
  result.tokens = tokens_;
  result.batch = batch_;
  result.fp8_matmul = fp8_matmul_;
  result.flops = forward_flops(job.config, tokens_) * static_cast<double>(batch_) *
                 (job.mode == wan::Mode::infer ? 1 : 3);
  result.readers = RunnerOptions().disk_readers;
  return result;
}

void BenchWan::add_first_step(WanBenchResult& result, const WanBenchRun& bench,
                              const DiskAlone& disk_alone) const {
  result.first.read = bench.read_by("load") + bench.read();
  result.first.reading = bench.disk();
  result.first.disk_around = (result.first.disk_before + disk_alone()) / 2;
}

// The disk is measured before and after every step: it differs from minute to minute.
void BenchWan::time_steps(WanBenchResult& result, WanBenchRun& bench,
                          const DiskAlone& disk_alone) const {
  bench.step();
  bench.programs();  // forgets them
  WanBenchResult::Steps& steps = result.steps;
  double last_disk = disk_alone();
  for (std::int64_t i = 0; i < steps_; ++i) {
    const Stopwatch at;
    bench.step();
    steps.seconds.push_back(at.seconds());
    steps.stalls.push_back(bench.stalled());
    const double next_disk = disk_alone();
    steps.disk_alone.push_back((last_disk + next_disk) / 2);
    last_disk = next_disk;
    steps.disk_ratios.push_back(
        bench.read() > 0 ? steps.seconds.back() * steps.disk_alone.back() / bench.read() : 0);
  }
  steps.sort();
  result.reading = bench.disk();
  result.verifying = bench.verifying();
  result.read = bench.read();
  result.loss = bench.loss();
}

}  // namespace

std::unique_ptr<Command> bench_wan() { return std::make_unique<BenchWan>(); }

}  // namespace ballast
