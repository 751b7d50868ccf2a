#include "app/bench/bench_wan.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "app/bench/bench_wan_run.h"
#include "app/bench/random_weights.h"
#include "app/output.h"
#include "app/planning.h"
#include "app/planning_heap.h"
#include "core/error.h"
#include "core/log.h"
#include "core/short_number.h"
#include "core/stopwatch.h"
#include "core/to_size.h"
#include "memory/disk_speed.h"
#include "memory/gpu.h"
#include "train/config/enum_names.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

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

fit::PlannedRun fitting(const fit::Request& r) {
  const PlanningHeap heap;
  auto outcome = fit::find_plan(r);
  if (auto* refusal = std::get_if<Refusal>(&outcome)) {
    fail(ErrorCode::refused,
         shortage_lines(refusal->shortages, r.budget, r.backend.device == Device::cpu));
  }
  return std::get<fit::PlannedRun>(std::move(outcome));
}

}  // namespace

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
  app.add_option("--gpu", gpu_, "GPU memory for --auto (default: what is free)");
  app.add_option("--ram", ram_, "RAM for --auto");
  app.add_option("--disk", disk_, "space for optimizer state for --auto");
  app.add_flag("--non-deterministic", fast_, "faster attention backward, bits differ between runs");
  app.add_option("--verify-weights", verify_weights_, std::string(train::kVerifyHelp))
      ->capture_default_str();
  app.add_option("--steps", steps_, "timed steps, after two that are not")
      ->check(CLI::Range(1, 1000));
  app.add_option("--folder", folder_, "where the file of random weights goes, and state on disk");
  app.add_option("--file", file_,
                 "a file of random weights that is kept, and used where it is there already");
  app.add_option("--disk-trial", disk_trial_, "seconds for which the disk alone is measured")
      ->check(CLI::Range(0.1, 60.0));
  app.add_flag("--kernels", kernels_, "a table of what takes the time, by operation");
  app.add_flag("--json", json_, "one JSON document");
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
  const train::RunTarget target = train::this_machine(
      {.deterministic = !fast_, .verify_weights = verify_weights_of(verify_weights_)});
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
  r.budget = train::budget_on(target, parse_budget(gpu_, ram_, disk_), false);
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
      fail(ErrorCode::usage,
           fmt::format("--stream {}: expected 0 to {}, or all", stream_, groups - 2));
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
  // Before and after every step: it differs from minute to minute.
  const int readers = RunnerOptions().disk_readers;
  const auto disk_alone = [&] {
    return whole ? measure_streaming(weights.path(), readers, disk_trial_).read : 0;
  };
  const double disk_before = disk_alone();
  const double aside_seconds = aside.seconds();
  timeline.note("weights written");
  const fit::PlannedRun planned = auto_ ? fitting(r) : fit::plan_run(r, policy(r));
  const MemoryPolicy& chosen = planned.policy;
  timeline.note("planned");
  const double plan_seconds = start.seconds() - aside_seconds;
  WanBenchRun bench(r, chosen, planned.plan, folder_, timeline);
  const double load_seconds = start.seconds() - aside_seconds;
  bench.step();
  const double first_step = start.seconds() - aside_seconds;
  const double first_read = bench.read_by("load") + bench.read();
  const LaneTime first_reading = bench.disk();
  const double first_disk = (disk_before + disk_alone()) / 2;
  bench.step();
  bench.programs();  // forgets them
  std::vector<double> times, stalls;
  std::vector<double> disks, ratios;  // of the disk alone around each step; what a step took of it
  double last_disk = disk_alone();
  for (std::int64_t i = 0; i < steps_; ++i) {
    const Stopwatch at;
    bench.step();
    times.push_back(at.seconds());
    stalls.push_back(bench.stalled());
    const double next_disk = disk_alone();
    disks.push_back((last_disk + next_disk) / 2);
    last_disk = next_disk;
    ratios.push_back(bench.read() > 0 ? times.back() * disks.back() / bench.read() : 0);
  }
  for (auto* numbers : {&times, &stalls, &disks, &ratios}) std::ranges::sort(*numbers);
  const double disk = disks[disks.size() / 2], ratio = ratios[ratios.size() / 2];
  const LaneTime reading = bench.disk();  // of the last of them
  const CheckedReads::Cost verifying = bench.verifying();
  const double seconds = times[times.size() / 2];
  const double flops = forward_flops(wan::job_of(r).dit.config, tokens_) *
                       static_cast<double>(batch_) *
                       (wan::job_of(r).dit.mode == wan::Mode::infer ? 1 : 3);
  const Bytes arena = bench.plan().peak_of(Tier::device);
  Json j = {{"model", wan::job_of(r).dit.config.name},
            {"mode", mode_},
            {"tokens", tokens_},
            {"batch", batch_},
            {"fp8_matmul", fp8_matmul_},
            {"policy", chosen.name},
            {"ms", seconds * 1e3},
            {"ms_min", times.front() * 1e3},
            {"ms_max", times.back() * 1e3},
            {"tflops", flops / seconds * 1e-12},
            {"stall_ms", stalls[stalls.size() / 2] * 1e3},
            {"predicted_ms", planned.seconds_per_step() * 1e3},
            {"device_arena_planned", arena.count},
            {"device_arena_used", bench.runner().high_water(Tier::device).count},
            {"host_arena_planned", bench.plan().peak_of(Tier::host).count},
            {"host_arena_used", bench.runner().high_water(Tier::host).count},
            {"disk_planned", bench.plan().peak_of(Tier::disk).count},
            {"disk_used", bench.runner().high_water(Tier::disk).count},
            {"device_planned", planned.needed(Tier::device).count},
            {"host_planned", planned.needed(Tier::host).count},
            {"plan_seconds", plan_seconds},
            {"load_seconds", load_seconds},
            {"libraries_waited_seconds", bench.runner().opening().waited},
            {"first_step_seconds", first_step},
            {"first_step_read_bytes", first_read},
            {"first_step_disk_busy_seconds", first_reading.busy},
            {"first_step_disk_waiting_seconds", first_reading.waiting},
            {"weights_file", weights.bytes()},
            {"read_bytes", bench.read()},
            {"disk_bytes_per_second", disk},
            {"disk_ratio", ratio},
            {"first_step_disk_bytes_per_second", first_disk},
            {"disk_bytes_per_second_before", disk_before},
            {"verify_weights", verify_weights_},
            {"verified_bytes", verifying.bytes},
            {"verifying_ms", verifying.seconds * 1e3},
            {"disk_busy_ms", reading.busy * 1e3},
            {"disk_waiting_ms", reading.waiting * 1e3},
            {"loss", bench.loss()}};
  if (gpu) {
    j["device"] = info.name;
    j["device_used"] = gpu_memory_of_process().count;
    j["device_context"] = info.context.count;
  }
  timeline.note("end");
  j["host_used"] = timeline.now().count;
  j["host_by_moment"] = timeline.json();
  double predicted_so = 0;  // with what the disk gave just before; what it takes is not the run's
  if (disk_before > 0) {
    r.profile.disk_bandwidth = disk_before;
    predicted_so = fit::plan_run(r, chosen).seconds_per_step();
    j["predicted_ms_disk_before"] = predicted_so * 1e3;
  }
  const std::string programs = bench.programs();
  KernelTimes kernels;
  if (kernels_ && gpu) {
    kernels = bench.kernels();
    j["kernels"] = kernels.json();
  }
  if (json_) return print(j.dump(2) + "\n");
  print(
      fmt::format("{} {} of {} tokens{}: {:.1f} ms ({:.1f} to {:.1f}), {}, stall {:.1f} ms, "
                  "predicted {:.1f} ms\n",
                  wan::job_of(r).dit.config.name, mode_, tokens_,
                  batch_ > 1 ? fmt::format(" x {}", batch_) : "", seconds * 1e3,
                  times.front() * 1e3, times.back() * 1e3, flop_rate(flops / seconds),
                  stalls[stalls.size() / 2] * 1e3, planned.seconds_per_step() * 1e3));
  print(fmt::format("compute memory {} planned, {} used; buffers in RAM {} planned, {} used\n",
                    arena, bench.runner().high_water(Tier::device),
                    bench.plan().peak_of(Tier::host), bench.runner().high_water(Tier::host)));
  if (gpu) {
    print(fmt::format("GPU memory {} planned, {} used, {} of it by its context; ",
                      planned.needed(Tier::device), Bytes{j["device_used"].get<std::uint64_t>()},
                      info.context));
  }
  const Bytes process = planned.needed(Tier::host) + (gpu ? Bytes{} : planned.needed(Tier::device));
  print(fmt::format("process {} planned, {} used\n", process,
                    Bytes{j["host_used"].get<std::uint64_t>()}));
  if (disk > 0 && bench.read() > 0) {
    print(fmt::format(
        "{} read at {:.2f} GB/s, the disk's threads read for {:.2f} s and waited {:.2f}; the disk "
        "alone around each step, {} reads at once: {:.2f} GB/s, {:.2f} s, and a step {:.2f} x of "
        "it\n",
        Bytes{static_cast<std::uint64_t>(bench.read())}, bench.read() / seconds * 1e-9,
        reading.busy, reading.waiting, readers, disk * 1e-9, bench.read() / disk, ratio));
    if (verifying.bytes > 0) {
      print(fmt::format(
          "--verify-weights {}: checksums of {} a step took the disk's threads {:.1f} ms of their "
          "{:.0f} ms, {:.1f} GB/s each\n",
          verify_weights_, Bytes{static_cast<std::uint64_t>(verifying.bytes)},
          verifying.seconds * 1e3, reading.busy * readers * 1e3,
          verifying.bytes / verifying.seconds * 1e-9));
    }
    print(
        fmt::format("the disk alone just before the first step: {:.2f} GB/s; with that, {:.1f} ms "
                    "are predicted\n",
                    disk_before * 1e-9, predicted_so * 1e3));
  }
  const Runner::Opening& opening = bench.runner().opening();
  print(fmt::format(
      "first step {:.1f} s after the start: planned after {:.1f} s, loaded after {:.1f} s, waited "
      "{:.1f} s for libraries{}\n",
      first_step, plan_seconds, load_seconds, opening.waited,
      disk_before > 0
          ? fmt::format("; the {} read until then take the disk alone {:.1f} s by what it gave "
                        "before, {:.1f} by that before and after; in the step its threads read for "
                        "{:.1f} s and waited {:.1f}",
                        Bytes{static_cast<std::uint64_t>(first_read)}, first_read / disk_before,
                        first_read / first_disk, first_reading.busy, first_reading.waiting)
          : ""));
  if (!kernels_) return;
  print("by program:\n" + programs + kernels.table() + "from the start:\n" + timeline.table());
  print(fmt::format("  waited {:.2f} s for memory, {:.2f} s for libraries, prepared in {:.2f} s\n",
                    opening.memory, opening.waited, opening.prepared));
  for (const auto& [name, took] : opening.by_operation) {
    if (took >= 0.01) print(fmt::format("  preparing {:<18} {:9.2f} s\n", name, took));
  }
}

}  // namespace ballast
