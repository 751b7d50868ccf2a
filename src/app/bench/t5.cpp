#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/bench/benches.h"
#include "app/bench/kernel_times.h"
#include "app/bench/memory_use.h"
#include "app/bench/random_weights.h"
#include "app/machine_flags.h"
#include "app/output.h"
#include "app/planning.h"
#include "core/error.h"
#include "core/short_number.h"
#include "core/stopwatch.h"
#include "core/to_size.h"
#include "models/t5/fit_job.h"
#include "models/t5/weights.h"
#include "nn/machine_options.h"
#include "plan/runner.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

// What a training step counts as: three times the forward pass, causal attention in full.
double step_flops(const t5::Config& c, const t5::BatchShape& b) {
  const auto f = [](std::int64_t x) { return static_cast<double>(x); };
  const double s = f(b.source), t = f(b.target), d = f(c.d_model), i = f(c.inner());
  const double ffn = f(c.gated ? 3 : 2) * d * f(c.d_ff);
  const double encoder = f(c.layers) * (2 * s * (4 * d * i + ffn) + 4 * s * s * i);
  const double decoder = f(c.decoder_layers) * (2 * t * (6 * d * i + ffn) + 4 * s * d * i +
                                                4 * t * t * i + 4 * t * s * i);
  return 3 * f(b.samples * b.micro_batches) * (encoder + decoder + 2 * t * d * f(c.vocabulary));
}

// The job with its runner, loaded and with inputs.
class T5BenchRun {
 public:
  T5BenchRun(const fit::Request& request, const MemoryPolicy& policy) : profile_(request.profile) {
    set_.backend = request.backend;
    t5::Seq2SeqJob job = t5::job_of(request).seq2seq;
    job.policy = policy;
    model_ = std::make_unique<t5::Seq2Seq>(set_, std::move(job), t5::job_of(request).weights);
    plan_ = plan_memory(set_);
    runner_ = std::make_unique<Runner>(set_, plan_);
    runner_->run("load");
    runner_->run("init_state");
    const t5::StepIo& step = model_->io().steps[0];
    const auto tokens = [&](Buffer b, std::uint32_t seed) {
      auto* to = runner_->view(b).as<std::int32_t>();
      const auto vocabulary =
          static_cast<std::uint32_t>(t5::job_of(request).seq2seq.config.vocabulary);
      const std::int64_t count = set_.spec(b).shape.elements();
      for (std::int64_t i = 0; i < count; ++i) {
        to[i] = static_cast<std::int32_t>((static_cast<std::uint32_t>(i) * 2654435761u + seed) %
                                          vocabulary);
      }
      return count;
    };
    std::int64_t labels = 0;
    for (const t5::MicroBatchIo& m : step.micro_batches) {
      tokens(m.source, 1);
      tokens(m.decoder_input, 2);
      labels += tokens(m.labels, 3);
      std::fill_n(runner_->view(m.source_lengths).as<std::int32_t>(), step.shape.samples,
                  static_cast<std::int32_t>(step.shape.source));
    }
    weight_ = 1 / static_cast<float>(labels);
    for (const t5::MicroBatchIo& m : step.micro_batches) {
      *runner_->view(m.label_weight).as<float>() = weight_;
    }
  }

  void step() {
    ++steps_;
    stalled_ = 0;
    for (const char* program : {"step", "grad_norm", "update"}) run(program);
  }
  // Of one more step.
  KernelTimes kernels() {
    return kernels_of(*runner_, collect_, [this] { step(); });
  }
  std::string programs() { return programs_.table(set_, plan_, profile_); }
  double loss() {
    double sum = 0;
    for (const t5::MicroBatchIo& m : model_->io().steps[0].micro_batches) {
      const TensorView losses = runner_->view(m.losses);
      for (std::int64_t i = 0; i < losses.elements(); ++i) sum += losses.as<float>()[i];
    }
    return sum * weight_;
  }
  double norm() const { return *runner_->view(model_->io().grad_norm).as<float>(); }
  double stalled() const { return stalled_; }
  const MemoryPlan& plan() const { return plan_; }
  Runner& runner() { return *runner_; }

 private:
  void run(const std::string& program) {
    const Stopwatch at;
    runner_->run(program, {.step = steps_, .seed = 1, .learning_rate = 1e-4});
    const double stalled = runner_->lane_times()[to_size(Lane::compute)].waiting;
    stalled_ += stalled;
    if (steps_ > 1) programs_.add(program, at.seconds(), stalled);  // the first one prepares
    if (collect_) collect_->add(*runner_, set_, set_.program_index(program), profile_);
  }

  MachineProfile profile_;
  ProgramTimes programs_;
  ProgramSet set_;
  std::unique_ptr<t5::Seq2Seq> model_;
  MemoryPlan plan_;
  std::unique_ptr<Runner> runner_;
  std::int64_t steps_ = 0;
  float weight_ = 0;
  double stalled_ = 0;
  KernelTimes* collect_ = nullptr;
};

// ballast bench t5: plans and runs training steps of the encoder-decoder on random weights, and
// prints what was planned and predicted beside what was measured.
class BenchT5 : public Command {
 public:
  void declare(CLI::App& app) override;
  void run() override;

 private:
  fit::Request request() const;
  MemoryPolicy policy(const t5::Config& config) const;

  std::string model_ = "flan-t5-xl", activations_ = "kept", optimizer_ = "adamw";
  std::string timeline_ = "bf16", gradients_ = "bf16", rounding_ = "stochastic";
  std::string folder_ = "/tmp";
  std::int64_t batch_ = 8, source_ = 512, target_ = 256, micro_batches_ = 1, steps_ = 5;
  std::int64_t stream_ = 0, slots_ = 2, matrices_ahead_ = 0, kept_ = 0, heads_ = 0, chunk_ = 0;
  double dropout_ = 0;
  bool auto_ = false, offload_ = false, master_ = false, kernels_ = false;
  MachineOptions machine_;
};

void BenchT5::declare(CLI::App& app) {
  app.add_option("--model", model_, "flan-t5-small to flan-t5-xxl, or the name of a preset");
  app.add_option("--batch", batch_, "samples of a micro-batch")->check(CLI::Range(1, 1024));
  app.add_option("--source", source_, "tokens of a source")->check(CLI::Range(1, 1 << 16));
  app.add_option("--target", target_, "tokens of a target")->check(CLI::Range(1, 1 << 16));
  app.add_option("--micro-batches", micro_batches_, "that share a step")->check(CLI::Range(1, 256));
  app.add_option("--activations", activations_, "kept, attention-kept or recomputed")
      ->check(CLI::IsMember({"kept", "attention-kept", "recomputed"}));
  app.add_option("--kept-blocks", kept_, "blocks that keep everything, evenly spaced");
  app.add_option("--stream", stream_, "groups (blocks, embedding, head) that stream from RAM");
  app.add_option("--slots", slots_, "slots of streamed weights")->check(CLI::Range(1, 64));
  app.add_option("--matrix-streaming,--parts", matrices_ahead_,
                 "stream matrix by matrix, so many ahead; 0: whole slots");
  app.add_flag("--offload", offload_, "what blocks keep waits in RAM");
  app.add_option("--chunk", chunk_, "tokens worked on at once (0: all)");
  app.add_option("--heads", heads_, "heads at a time in attention (0: all)");
  app.add_option("--optimizer", optimizer_, "adamw, adamw8bit, adafactor, ...");
  app.add_option("--moments", timeline_, "of adamw: f32 or bf16")
      ->check(CLI::IsMember({"f32", "bf16"}));
  app.add_option("--gradients", gradients_, "of matrices: f32 or bf16")
      ->check(CLI::IsMember({"f32", "bf16"}));
  app.add_flag("--master", master_, "bf16 weights have an f32 master");
  app.add_option("--rounding", rounding_, "of updates without a master: kahan or stochastic")
      ->check(CLI::IsMember({"kahan", "stochastic"}));
  app.add_option("--dropout", dropout_, "probability")->check(CLI::Range(0.0, 0.9));
  app.add_flag("--auto", auto_, "the fastest predicted policy inside --gpu and --ram");
  declare_machine(app, machine_, {"gpu", "ram", "json"});
  app.add_option("--steps", steps_, "timed steps, after two that are not")
      ->check(CLI::Range(1, 1000));
  app.add_option("--folder", folder_, "where the file of random weights goes");
  app.add_flag("--kernels", kernels_, "a table of what takes the time, by operation");
}

fit::Request BenchT5::request() const {
  fit::Request r = {.job = t5::FitJob()};
  t5::Seq2SeqJob& job = t5::job_of(r).seq2seq;
  std::string name = model_;
  if (name.starts_with("flan-t5-")) name = "t5-v1.1-" + name.substr(8);
  const auto preset = t5::find_preset(name);
  if (!preset || preset->decoder_layers == 0) {
    fail_unknown("--model", model_,
                 {"flan-t5-small", "flan-t5-base", "flan-t5-large", "flan-t5-xl", "flan-t5-xxl"});
  }
  job.config = *preset;
  const train::RunTarget target = train::this_machine(machine_);
  r.profile = target.profile;
  r.backend = target.backend;
  job.precision = precision_on(r.backend.device);
  job.trains = job.record_update = true;
  job.batches = {
      {.samples = batch_, .source = source_, .target = target_, .micro_batches = micro_batches_}};
  job.dropout = dropout_;
  job.gradient = gradients_ == "bf16" ? DType::bf16 : DType::f32;
  job.max_grad_norm = 1;
  const auto kind = find_optimizer(optimizer_);
  if (!kind) fail_unknown("--optimizer", optimizer_, {"adamw", "adamw8bit", "adafactor", "sgd"});
  job.optimizer.kind = *kind;
  job.optimizer.state_dtype = timeline_ == "bf16" ? DType::bf16 : DType::f32;
  job.optimizer.rounding =
      rounding_ == "kahan" ? UpdateRounding::kahan : UpdateRounding::stochastic;
  if (master_) job.optimizer.rounding = UpdateRounding::nearest;
  r.budget = train::resolve_budget(target, machine_);
  return r;
}

MemoryPolicy BenchT5::policy(const t5::Config& config) const {
  const int groups = t5::group_count(config), streamed = static_cast<int>(stream_);
  if (streamed < 0 || streamed > groups) {
    fail(ErrorCode::usage, "--stream {}: expected 0 to {}", stream_, groups);
  }
  const Streaming stream = {.slots = static_cast<int>(slots_),
                            .matrices_ahead = static_cast<int>(matrices_ahead_),
                            .resident_groups = groups - streamed,
                            .stream_from = StreamSource::host};
  return {.name = "bench",
          .streaming = streamed > 0 ? std::optional(stream) : std::nullopt,
          .activations = activations_ == "kept"         ? Activations::kept
                         : activations_ == "recomputed" ? Activations::recomputed
                                                        : Activations::attention_kept,
          .kept_blocks = static_cast<int>(kept_),
          .offload = offload_,
          .chunk_tokens = chunk_,
          .heads_per_group = heads_};
}

void BenchT5::run() {
  fit::Request r = request();
  const bool gpu = r.backend.device == Device::cuda;
  GpuInfo info;
  if (gpu) info = open_gpu();
  const RandomWeights weights(t5::planned_groups(t5::job_of(r).seq2seq.config, DType::bf16),
                              folder_);
  t5::job_of(r).weights = weights.groups();
  const fit::PlannedRun planned =
      auto_ ? fitting_plan(r) : fit::plan_run(r, policy(t5::job_of(r).seq2seq.config));
  const std::string chosen = t5::describe(t5::job_of(r).seq2seq.config, planned.policy);
  const Stopwatch begin;
  T5BenchRun bench(r, planned.policy);
  const double load_seconds = begin.seconds();
  bench.step();
  const double first_step = begin.seconds(), first_loss = bench.loss();
  bench.step();
  std::vector<double> times, stalls;
  for (std::int64_t i = 0; i < steps_; ++i) {
    const Stopwatch at;
    bench.step();
    times.push_back(at.seconds());
    stalls.push_back(bench.stalled());
  }
  std::ranges::sort(times);
  std::ranges::sort(stalls);
  const double seconds = times[times.size() / 2];
  const double flops = step_flops(t5::job_of(r).seq2seq.config, t5::job_of(r).seq2seq.batches[0]);
  Json j = {{"model", t5::job_of(r).seq2seq.config.name},
            {"batch", batch_},
            {"source", source_},
            {"target", target_},
            {"micro_batches", micro_batches_},
            {"dropout", dropout_},
            {"policy", chosen},
            {"ms", seconds * 1e3},
            {"ms_min", times.front() * 1e3},
            {"ms_max", times.back() * 1e3},
            {"tflops", flops / seconds * 1e-12},
            {"stall_ms", stalls[stalls.size() / 2] * 1e3},
            {"predicted_ms", planned.seconds_per_step() * 1e3},
            {"load_seconds", load_seconds},
            {"first_step_seconds", first_step},
            {"first_loss", first_loss},
            {"loss", bench.loss()},
            {"grad_norm", bench.norm()}};
  const MemoryUse memory = memory_use(planned, bench.plan(), bench.runner(), gpu ? &info : nullptr);
  memory.add_to(j);
  const std::string programs = bench.programs();
  KernelTimes kernels;
  if (kernels_ && gpu) {
    kernels = bench.kernels();
    j["kernels"] = kernels.json();
  }
  if (machine_.json) return print(j.dump(2) + "\n");
  print(
      fmt::format("{} of {} x {} / {}{}: {:.1f} ms ({:.1f} to {:.1f}), {}, stall "
                  "{:.1f} ms, predicted {:.1f} ms\n",
                  t5::job_of(r).seq2seq.config.name, batch_, source_, target_,
                  micro_batches_ > 1 ? fmt::format(" x {}", micro_batches_) : "", seconds * 1e3,
                  times.front() * 1e3, times.back() * 1e3, flop_rate(flops / seconds),
                  stalls[stalls.size() / 2] * 1e3, planned.seconds_per_step() * 1e3));
  print(chosen + "\n");
  print(memory.text());
  print(
      fmt::format("loss {:.4f} at first, {:.4f} at last, gradient norm {:.3g}; first step after "
                  "{:.1f} s, of it {:.1f} s until loaded\n",
                  first_loss, bench.loss(), bench.norm(), first_step, load_seconds));
  if (kernels_) print("by program:\n" + programs + kernels.table());
}

}  // namespace

std::unique_ptr<Command> bench_t5() { return std::make_unique<BenchT5>(); }

}  // namespace ballast
