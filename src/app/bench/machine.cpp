#include "memory/machine.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "app/bench/benches.h"
#include "app/output.h"
#include "core/convert.h"
#include "core/error.h"
#include "core/progress.h"
#include "core/random.h"
#include "core/stopwatch.h"
#include "core/to_size.h"
#include "memory/arena.h"
#include "memory/disk_speed.h"
#include "memory/gpu.h"
#include "ops/attention/attention.h"
#include "ops/copy.h"
#include "ops/gelu.h"
#include "ops/linear/fp8_linear.h"
#include "ops/linear/linear.h"
#include "ops/rms_norm.h"
#include "plan/runner.h"
#include "train/run/measured_profile.h"

namespace ballast {
namespace {

// Sizes that keep the device busy for about a tenth of a second a run: those of the 14B transformer
// on a GPU, a block of a small one on processors.
struct Sizes {
  std::int64_t rows, width, hidden, heads, bytes;
  DType dtype;
};
constexpr Sizes kGpuSizes = {7168, 5120, 13824, 40, 1 << 30, DType::bf16};
constexpr Sizes kCpuSizes = {512, 512, 2048, 4, 32 << 20, DType::f32};

// What is measured, each as a program of its own.
class Probes {
 public:
  explicit Probes(const Backend& backend)
      : sizes_(backend.device == Device::cuda ? kGpuSizes : kCpuSizes) {
    set_.backend = backend;
    record_products();
    if (has_fp8()) record_fp8_products();
    if (backend.device == Device::cuda) record_f32_products();
    if (backend.device == Device::cuda) record_few_rows();
    record_attention();
    record_copies();
    plan_ = plan_memory(set_);
    runner_ = std::make_unique<Runner>(set_, plan_);
    fill_random();
    if (has_fp8()) runner_->run("quantize");
  }

  static constexpr std::int64_t kMinRows = 256;
  std::int64_t width() const { return sizes_.width; }
  bool has_fp8() const { return set_.backend.device == Device::cuda && set_.backend.sm >= 89; }

  // Seconds of one run, after the clocks have settled.
  double time(const char* program, double seconds) {
    runner_->run(program);
    const Stopwatch warm_up;
    while (warm_up.seconds() < seconds / 2) runner_->run(program);
    int runs = 0;
    const Stopwatch begin;
    do {
      runner_->run(program);
      ++runs;
    } while (begin.seconds() < seconds / 2);
    return begin.seconds() / runs;
  }

  // Of one kind of instructions among others, by the GPU's clock around each: FLOP/s.
  double rate(const char* program, Work work, double seconds) {
    time(program, seconds / 2);
    const int p = set_.program_index(program);
    const auto& code = set_.programs[to_size(p)].instructions;
    double flops = 0, spent = 0;
    runner_->time_instructions(true);
    const Stopwatch begin;
    do {
      runner_->run(p);
      const auto times = runner_->compute_times();
      for (std::size_t i = 0; i < code.size(); ++i) {
        if (code[i].cost.work != work) continue;
        flops += code[i].cost.flops;
        spent += times[i].second;
      }
    } while (begin.seconds() < seconds / 2);
    runner_->time_instructions(false);
    return flops / spent;
  }

  double flops(const char* program) const {
    double sum = 0;
    for (const Instruction& i : set_.programs[to_size(set_.program_index(program))].instructions) {
      sum += i.cost.flops;
    }
    return sum;
  }
  double moved(const char* program) const {  // once, not read and written
    const auto p = to_size(set_.program_index(program));
    return static_cast<double>(sizes_.bytes) *
           static_cast<double>(set_.programs[p].instructions.size());
  }
  std::size_t instructions(const char* program) const {
    return set_.programs[to_size(set_.program_index(program))].instructions.size();
  }

 private:
  Buffer random(ProgramBuilder& pb, const char* name, const Shape& shape) {
    return random(pb, name, shape, sizes_.dtype);
  }
  Buffer random(ProgramBuilder& pb, const char* name, const Shape& shape, DType dtype) {
    random_.push_back(pb.persistent(name, shape, dtype, Role::input));
    return random_.back();
  }

  // The products of a block: to the same width, up and down, forward and backward.
  void record_products() {
    ProgramBuilder pb(set_, "gemm");
    const Buffer x = random(pb, "x", {sizes_.rows, sizes_.width});
    const Buffer square = random(pb, "square", {sizes_.width, sizes_.width});
    const Buffer up = random(pb, "up", {sizes_.hidden, sizes_.width});
    const Buffer down = random(pb, "down", {sizes_.width, sizes_.hidden});
    for (int i = 0; i < 4; ++i) {
      const Buffer y =
          ops::linear(pb, x, {.weight = square, .bias = {}, .scale = {}}, sizes_.dtype);
      ops::linear_dx(pb, y, {.weight = square, .bias = {}, .scale = {}}, sizes_.dtype);
    }
    const Buffer h = ops::linear(pb, x, {.weight = up, .bias = {}, .scale = {}}, sizes_.dtype);
    ops::linear(pb, h, {.weight = down, .bias = {}, .scale = {}}, sizes_.dtype);
    ops::linear_dx(pb, h, {.weight = up, .bias = {}, .scale = {}}, sizes_.dtype);
  }

  // As models are verified in.
  void record_f32_products() {
    ProgramBuilder pb(set_, "f32_gemm");
    const Buffer x = random(pb, "x32", {sizes_.rows / 4, sizes_.width}, DType::f32);
    const Buffer w = random(pb, "square32", {sizes_.width, sizes_.width}, DType::f32);
    const Buffer y = ops::linear(pb, x, {.weight = w, .bias = {}, .scale = {}}, DType::f32);
    ops::linear_dx(pb, y, {.weight = w, .bias = {}, .scale = {}}, DType::f32);
  }

  // The forward ones of a block again, of 8-bit matrices.
  void record_fp8_products() {
    ProgramBuilder first(set_, "quantize");
    const auto quantized = [&](const char* name, const Shape& shape) {
      const Buffer codes = first.persistent("codes", shape, DType::f8_e4m3, Role::input);
      const Buffer scale = first.persistent("scale", {shape[0]}, DType::f32, Role::input);
      ops::quantize_rows(first, random(first, name, shape), codes, scale);
      return ops::QuantizedRows{codes, scale};
    };
    const auto multiply = [&](ProgramBuilder& pb, const ops::QuantizedRows& x,
                              const ops::QuantizedRows& w) {
      const Shape out = {pb.shape(x.values)[0], pb.shape(w.values)[0]};
      ops::fp8_linear_into(pb, x, {.weight = w.values, .bias = {}, .scale = w.scale},
                           pb.temp("y", out, sizes_.dtype));
    };
    const ops::QuantizedRows square = quantized("square8", {sizes_.width, sizes_.width});
    const ops::QuantizedRows up = quantized("up8", {sizes_.hidden, sizes_.width});
    const ops::QuantizedRows down = quantized("down8", {sizes_.width, sizes_.hidden});
    // Alone they would run at the lowest clock that the card's power allows, in a pass they do
    // not: they alternate with quantizing and attention.
    ProgramBuilder pb(set_, "fp8_gemm");
    const Buffer x = random(pb, "x8", {sizes_.rows, sizes_.width});
    const Buffer h = random(pb, "h8", {sizes_.rows, sizes_.hidden});
    const Buffer heads = pb.split_columns(x, sizes_.heads);
    for (int block = 0; block < 4; ++block) {
      for (int i = 0; i < 3; ++i) {
        const ops::QuantizedRows rows = ops::quantize_rows(pb, x);
        multiply(pb, rows, square);
        multiply(pb, rows, square);
      }
      ops::attention(pb, heads, heads, heads, {.scale = 0.08f});
      multiply(pb, ops::quantize_rows(pb, x), up);
      multiply(pb, ops::quantize_rows(pb, h), down);
    }
  }

  // Too few rows to fill the device: what they take is the walk along the contraction.
  void record_few_rows() {
    ProgramBuilder pb(set_, "few_rows");
    const Buffer x = random(pb, "few", {kMinRows, sizes_.width});
    const Buffer w = random(pb, "few_weights", {sizes_.width, sizes_.width});
    for (int i = 0; i < 100; ++i) {
      ops::linear(pb, x, {.weight = w, .bias = {}, .scale = {}}, sizes_.dtype);
    }
    // What does not grow with the contraction: a quarter of it, and attention of few tokens.
    ProgramBuilder narrow(set_, "few_columns");
    const Buffer y = random(narrow, "fewer", {kMinRows, sizes_.width / 4});
    const Buffer u = random(narrow, "fewer_weights", {sizes_.width, sizes_.width / 4});
    for (int i = 0; i < 100; ++i) {
      ops::linear(narrow, y, {.weight = u, .bias = {}, .scale = {}}, sizes_.dtype);
    }
    const Shape shape = {64, sizes_.heads, sizes_.width / sizes_.heads};
    ProgramBuilder attention(set_, "few_tokens");
    const Buffer q = random(attention, "few_q", shape), o = random(attention, "few_o", shape);
    const Buffer lse =
        attention.persistent("few_lse", {sizes_.heads, 64}, DType::f32, Role::output);
    for (int i = 0; i < 100; ++i) ops::attention_into(attention, q, q, q, o, lse, {.scale = 0.08f});
    ProgramBuilder backward(set_, "few_tokens_backward");
    const Buffer dq = random(backward, "few_dq", shape), dk = random(backward, "few_dk", shape);
    const Buffer dv = random(backward, "few_dv", shape);
    for (int i = 0; i < 100; ++i) {
      ops::attention_backward(backward, {.q = q, .k = q, .v = q, .o = o, .lse = lse}, q, dq, dk, dv,
                              {.scale = 0.08f});
    }
  }

  void record_attention() {
    ProgramBuilder pb(set_, "attention");
    const Shape shape = {sizes_.rows, sizes_.heads, sizes_.width / sizes_.heads};
    const Buffer q = random(pb, "q", shape), k = random(pb, "k", shape), v = random(pb, "v", shape);
    const ops::AttentionOptions options = {.scale = 0.08f};
    const Buffer o = random(pb, "o", shape);
    const Buffer lse = pb.persistent("lse", {sizes_.heads, sizes_.rows}, DType::f32, Role::output);
    ops::attention_into(pb, q, k, v, o, lse, options);
    const Buffer dq = random(pb, "dq", shape), dk = random(pb, "dk", shape);
    const Buffer dv = random(pb, "dv", shape);
    ProgramBuilder backward(set_, "attention_backward");
    ops::attention_backward(backward, {.q = q, .k = k, .v = v, .o = o, .lse = lse}, q, dq, dk, dv,
                            options);
  }

  void record_copies() {
    ProgramBuilder memory(set_, "memory");
    const Buffer a = memory.persistent("a", {sizes_.bytes}, DType::u8, Role::input);
    const Buffer b = memory.persistent("b", {sizes_.bytes}, DType::u8, Role::output);
    const Buffer host =
        memory.persistent("host", {sizes_.bytes}, DType::u8, Role::staging, Tier::host);
    const Buffer back =
        memory.persistent("back", {sizes_.bytes}, DType::u8, Role::staging, Tier::host);
    for (int i = 0; i < 16; ++i) ops::copy(memory, a, b);
    ProgramBuilder upload(set_, "upload");
    for (int i = 0; i < 2; ++i) ops::copy(upload, host, a, Lane::upload);
    ProgramBuilder download(set_, "download");
    for (int i = 0; i < 2; ++i) ops::copy(download, b, back, Lane::download);
    ProgramBuilder both(set_, "both");
    for (int i = 0; i < 2; ++i) {
      ops::copy(both, host, a, Lane::upload);
      ops::copy(both, b, back, Lane::download);
    }
    ProgramBuilder launch(set_, "launch");
    const Buffer little =
        launch.persistent("little", {16, sizes_.width}, sizes_.dtype, Role::output);
    const Buffer gain = launch.persistent("gain", {sizes_.width}, sizes_.dtype, Role::output);
    const Buffer r = launch.persistent("r", {16}, DType::f32, Role::output);
    for (int i = 0; i < 500; ++i) {  // the operations around products
      ops::gelu_into(launch, little, little);
      ops::rms_norm_into(launch, little, gain, little, r, 1e-6f);
    }
  }

  // Zeros would be faster than weights and activations are: fewer bits change, less power.
  void fill_random() {
    for (const Buffer b : random_) {
      const std::int64_t n = set_.spec(b).shape.elements();
      std::vector<float> values(to_size(n));
      fill_normal(random_source(1, "bench", 0, set_.name(b)), 0, values.data(), n);
      const DType dtype = set_.spec(b).dtype;
      std::vector<std::byte> stored(to_size(n) * size_of(dtype));
      convert(values.data(), DType::f32, stored.data(), dtype, n);
      runner_->write(b, stored);
    }
  }

  Sizes sizes_;
  ProgramSet set_;
  std::vector<Buffer> random_;
  MemoryPlan plan_;
  std::unique_ptr<Runner> runner_;
};

// Bytes per second of making host memory present and keeping it in place for the GPU.
double pinning_rate() {
  constexpr Bytes kSize{4ull << 30};
  ThreadPool pool(usable_cpus(read_machine()));
  const Stopwatch begin;
  Arena arena(kSize, "trial of pinning");
  arena.prefault(pool);
  const PinnedRegion pinned(arena.base(), arena.size());
  return static_cast<double>(kSize.count) / begin.seconds();
}

// ballast bench machine: measures the rates that time is predicted from and stores them
// (train/run/measured_profile.h).
class BenchMachine : public Command {
 public:
  void declare(CLI::App& app) override;
  void run() override;

 private:
  std::string folder_ = ".";
  double seconds_ = 2;
  bool json_ = false, dry_ = false;
};

void BenchMachine::declare(CLI::App& app) {
  app.add_option("--folder", folder_, "the disk to measure is the one that holds this folder");
  app.add_option("--seconds", seconds_, "for each measurement")->check(CLI::Range(0.1, 60.0));
  app.add_flag("--dry", dry_, "print only, store nothing");
  app.add_flag("--json", json_, "one JSON document");
}

void BenchMachine::run() {
  const bool gpu = gpu_is_usable();
  MachineProfile p;
  Backend backend;
  GpuInfo info;
  if (gpu) {
    info = open_gpu();
    backend = {.device = Device::cuda, .sm = info.sm};
    p.name = p.description = info.name;
    p.device_memory = info.memory;
  } else {
    backend.threads = usable_cpus(read_machine());
    p.name = "this";
    p.description = fmt::format("this machine, {} compute threads", backend.threads);
  }
  p.device = backend.device;
  p.estimate = false;
  Probes probes(backend);
  Progress progress("measuring this machine", (gpu ? 14 : 9) + (probes.has_fp8() ? 1 : 0));
  const auto measure = [&](const char* program) {
    const double seconds = probes.time(program, seconds_);
    progress.add();
    return seconds;
  };
  p.gemm_flops = probes.flops("gemm") / measure("gemm");
  if (gpu) p.f32_gemm_flops = probes.flops("f32_gemm") / measure("f32_gemm");
  if (probes.has_fp8()) {
    p.fp8_gemm_flops = probes.rate("fp8_gemm", Work::fp8_gemm, seconds_);
    progress.add();
  }
  p.attention_flops = probes.flops("attention") / measure("attention");
  p.attention_backward_flops = probes.flops("attention_backward") / measure("attention_backward");
  p.memory_bandwidth = 2 * probes.moved("memory") / measure("memory");
  p.upload_bandwidth = probes.moved("upload") / measure("upload");
  p.download_bandwidth = probes.moved("download") / measure("download");
  p.both_ways_bandwidth = probes.moved("both") / measure("both");
  p.launch_seconds = measure("launch") / static_cast<double>(probes.instructions("launch"));
  if (gpu) {
    const auto each = [&](const char* program) {
      return measure(program) / static_cast<double>(probes.instructions(program));
    };
    const double product = each("few_rows"), quarter = each("few_columns");
    const double step = (product - quarter) / (0.75 * static_cast<double>(probes.width()));
    p.product_step_seconds = std::max(0.0, step);
    p.product_seconds =
        std::max(p.launch_seconds, product - step * static_cast<double>(probes.width()));
    p.attention_seconds = each("few_tokens");
    p.attention_backward_seconds = each("few_tokens_backward");
  }
  DiskSpeed disk = measure_disk(folder_, DiskTrial::writes);
  if (!disk.problem.empty()) disk = measure_disk(folder_);  // a folder that may only be read
  progress.add();
  p.disk_bandwidth = disk.read;
  p.disk_write_bandwidth = disk.write.value_or(0);
  const double pinning = gpu ? pinning_rate() : 0;

  const std::filesystem::path path = train::profile_path(p.device);
  const bool stores = !dry_ && !path.empty() && disk.read > 0;
  if (stores) train::save_profile(p, path);
  if (json_) {
    nlohmann::ordered_json j = {{"name", p.name},
                                {"device", name_of(p.device)},
                                {"gemm_flops", p.gemm_flops},
                                {"f32_gemm_flops", f32_gemm_flops(p)},
                                {"fp8_gemm_flops", p.fp8_gemm_flops},
                                {"attention_flops", p.attention_flops},
                                {"attention_backward_flops", p.attention_backward_flops},
                                {"memory_bandwidth", p.memory_bandwidth},
                                {"upload_bandwidth", p.upload_bandwidth},
                                {"download_bandwidth", p.download_bandwidth},
                                {"both_ways_bandwidth", p.both_ways_bandwidth},
                                {"disk_bandwidth", p.disk_bandwidth},
                                {"disk_write_bandwidth", p.disk_write_bandwidth},
                                {"pinning_bandwidth", pinning},
                                {"launch_seconds", p.launch_seconds},
                                {"product_step_seconds", p.product_step_seconds},
                                {"product_seconds", p.product_seconds},
                                {"attention_seconds", p.attention_seconds},
                                {"attention_backward_seconds", p.attention_backward_seconds},
                                {"stored", stores ? path.string() : ""}};
    return print(j.dump(2) + "\n");
  }
  print(fmt::format("{}\n", p.description));
  const auto row = [](const char* what, double value, const char* unit) {
    print(fmt::format("  {:<34} {:9.1f} {}\n", what, value, unit));
  };
  const double tera = gpu ? 1e12 : 1e9;
  const char* const flops = gpu ? "TFLOP/s" : "GFLOP/s";
  row("matrix products", p.gemm_flops / tera, flops);
  if (gpu) row("matrix products, f32", p.f32_gemm_flops / tera, flops);
  if (probes.has_fp8()) row("matrix products, fp8", p.fp8_gemm_flops / tera, flops);
  row("attention", p.attention_flops / tera, flops);
  row("attention, backward", p.attention_backward_flops / tera, flops);
  row("memory, read and written", p.memory_bandwidth / 1e9, "GB/s");
  row("host to device", p.upload_bandwidth / 1e9, "GB/s");
  row("device to host", p.download_bandwidth / 1e9, "GB/s");
  row("both ways at once, together", p.both_ways_bandwidth / 1e9, "GB/s");
  if (gpu) row("pinning RAM", pinning / 1e9, "GB/s");
  if (disk.problem.empty()) {
    row(disk.direct ? "disk, direct reads" : "disk, through the page cache", disk.read / 1e9,
        "GB/s");
    if (disk.write) row("disk, writes forced to it", *disk.write / 1e9, "GB/s");
  } else {
    print(fmt::format("  disk: not measured, {}\n", disk.problem));
  }
  row("an instruction's fixed cost", p.launch_seconds * 1e6, "us");
  if (gpu) {
    row("a small product's fixed cost", p.product_seconds * 1e6, "us");
    row("1,000 steps of a small product", p.product_step_seconds * 1e9, "us");
    row("attention of few tokens", p.attention_seconds * 1e6, "us");
    row("attention of few tokens, backward", p.attention_backward_seconds * 1e6, "us");
  }
  if (stores) print(fmt::format("stored in {}: plans predict time from it\n", path.string()));
}

}  // namespace

std::unique_ptr<Command> bench_machine() { return std::make_unique<BenchMachine>(); }

}  // namespace ballast
