#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/bench/benches.h"
#include "app/output.h"
#include "core/error.h"
#include "memory/gpu.h"
#include "ops/adamw.h"
#include "ops/adamw_8bit.h"
#include "ops/copy.h"
#include "ops/ema.h"
#include "ops/fill.h"
#include "ops/gated_residual.h"
#include "ops/gelu.h"
#include "ops/global_norm.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/layer_norm.h"
#include "ops/linear/linear_cuda.h"
#include "ops/linear/quantize_rows.h"
#include "ops/noise.h"
#include "ops/residual_norm.h"
#include "ops/rms_norm.h"
#include "ops/rope_3d.h"
#include "plan/profile.h"
#include "plan/runner.h"

namespace ballast {
namespace {

// Each operation is a program of its own, with nothing but temporaries: they all share the memory
// of the largest.
class KernelPrograms {
 public:
  KernelPrograms(const Backend& backend, std::int64_t rows, std::int64_t width, std::int64_t hidden,
                 std::int64_t parameters)
      : rows_(rows), width_(width), hidden_(hidden), parameters_(parameters) {
    set_.backend = backend;
    record_rows();
    record_weights();
    record_updates();
    plan_ = plan_memory(set_);
    runner_ = std::make_unique<Runner>(set_, plan_);
    runner_->time_instructions(true);
  }

  struct Row {
    std::string name;
    double bytes, seconds;
  };
  // The best of some runs of every program, without what only makes its operands.
  std::vector<Row> measure(int runs) {
    std::vector<Row> rows;
    for (std::size_t p = 0; p < set_.programs.size(); ++p) {
      const auto& code = set_.programs[p].instructions;
      Row row = {set_.programs[p].name, 0, 0};
      for (int k = 0; k < runs; ++k) {
        runner_->run(static_cast<int>(p), {.step = k + 1, .learning_rate = 1e-5});
        const auto times = runner_->compute_times();
        double bytes = 0, seconds = 0;
        for (std::size_t i = measured_from_[p]; i < code.size(); ++i) {
          bytes += moved_bytes(set_, code[i]);
          seconds += times[i].second;
        }
        if (k == 0 || seconds < row.seconds) row = {row.name, bytes, seconds};
      }
      rows.push_back(row);
    }
    return rows;
  }

 private:
  // Noise where there is much of it: equal numbers would be faster, fewer bits change.
  static Buffer noise(ProgramBuilder& pb, const char* name, const Shape& shape, DType dtype) {
    const Buffer wide = pb.temp(name, shape, DType::f32);
    ops::noise(pb, wide, ops::random_site("noise", name, 0));
    return ops::cast(pb, wide, dtype);
  }
  static Buffer filled(ProgramBuilder& pb, const char* name, const Shape& shape, DType dtype,
                       float value) {
    const Buffer b = pb.temp(name, shape, dtype);
    ops::fill(pb, b, value);
    return b;
  }
  Buffer activation(ProgramBuilder& pb, const char* name, std::int64_t columns) const {
    return noise(pb, name, {rows_, columns}, DType::bf16);
  }

  void record_rows() {
    {
      ProgramBuilder pb(set_, "copy");
      const Buffer x = activation(pb, "x", width_), y = activation(pb, "y", width_);
      begin();
      ops::copy(pb, x, y);
    }
    {
      ProgramBuilder pb(set_, "cast, bf16 to f32");
      const Buffer x = activation(pb, "x", width_);
      begin();
      ops::cast(pb, x, DType::f32);
    }
    {
      ProgramBuilder pb(set_, "cast, f32 to bf16");
      const Buffer x = noise(pb, "x", {rows_, width_}, DType::f32);
      begin();
      ops::cast(pb, x, DType::bf16);
    }
    {
      ProgramBuilder pb(set_, "norm, modulated");
      const Buffer x = activation(pb, "x", width_);
      const ops::NormTables tables = modulation(pb);
      begin();
      ops::layer_norm(pb, x, tables, 1e-6f, DType::bf16);
    }
    {
      ProgramBuilder pb(set_, "norm, modulated, backward");
      const Buffer x = activation(pb, "x", width_), dy = activation(pb, "dy", width_);
      const Buffer dx = activation(pb, "dx", width_);
      const Buffer stats = filled(pb, "stats", {rows_, 2}, DType::f32, 0.5f);
      const ops::NormTables tables = modulation(pb);
      begin();
      ops::layer_norm_backward(pb, x, stats, tables, dy, dx, true, {});
    }
    {
      ProgramBuilder pb(set_, "gate, residual");
      const Buffer x = activation(pb, "x", width_), y = activation(pb, "y", width_);
      const ops::Gate by = gate(pb);
      begin();
      ops::gated_residual(pb, x, y, by, x);
    }
    {
      ProgramBuilder pb(set_, "gate, residual, norm");
      const Buffer x = activation(pb, "x", width_), y = activation(pb, "y", width_);
      const ops::Gate by = gate(pb);
      const ops::NormTables tables = modulation(pb);
      begin();
      ops::residual_norm(pb, x, y, by, x, tables, 1e-6f, DType::bf16);
    }
    {
      ProgramBuilder pb(set_, "RMS norm, RoPE");
      const Buffer x = activation(pb, "x", width_);
      const Buffer r = filled(pb, "r", {rows_}, DType::f32, 1);
      const Buffer w = gain(pb), cos_sin = cos_sin_table(pb);
      begin();
      ops::rms_norm_into(pb, x, w, x, r, 1e-6f, cos_sin);
    }
    {
      ProgramBuilder pb(set_, "RMS norm, RoPE, backward");
      const Buffer x = activation(pb, "x", width_), dy = activation(pb, "dy", width_);
      const Buffer r = filled(pb, "r", {rows_}, DType::f32, 1);
      const Buffer w = gain(pb), cos_sin = cos_sin_table(pb);
      begin();
      ops::rms_norm_backward(pb, x, r, w, dy, dy, {}, cos_sin);
    }
    {
      ProgramBuilder pb(set_, "GELU");
      const Buffer x = activation(pb, "x", hidden_);
      begin();
      ops::gelu(pb, x, DType::bf16);
    }
    {
      ProgramBuilder pb(set_, "GELU, backward");
      const Buffer x = activation(pb, "x", hidden_), dy = activation(pb, "dy", hidden_);
      begin();
      ops::gelu_backward_into(pb, x, dy, dy);
    }
    {
      ProgramBuilder pb(set_, "GELU, backward and forward");
      const Buffer x = activation(pb, "x", hidden_), dy = activation(pb, "dy", hidden_);
      begin();
      ops::gelu_backward_into(pb, x, dy, dy, x);
    }
    if (set_.backend.sm >= 89) {
      ProgramBuilder pb(set_, "rows to fp8");
      const Buffer x = activation(pb, "x", width_);
      begin();
      ops::quantize_rows(pb, x);
    }
  }

  ops::NormTables modulation(ProgramBuilder& pb) const {
    return {.mul = filled(pb, "mul", {1, width_}, DType::f32, 0.1f),
            .add = filled(pb, "add", {1, width_}, DType::f32, 0.1f),
            .index = {},
            .one_plus = true};
  }
  ops::Gate gate(ProgramBuilder& pb) const {
    return {.table = filled(pb, "gate", {1, width_}, DType::f32, 0.1f), .index = {}};
  }
  Buffer gain(ProgramBuilder& pb) const { return filled(pb, "gain", {width_}, DType::bf16, 1); }
  // An image of as many tokens; the model knows 1,024 positions along each side.
  Buffer cos_sin_table(ProgramBuilder& pb) const {
    std::int64_t side = std::min<std::int64_t>(rows_, 1024);
    while (rows_ % side != 0) --side;
    return ops::rope_3d_table(pb, {1, rows_ / side, side}, 128);
  }

  // Weights of 8 bits, a scale per row, as products expand them.
  void record_weights() {
    for (const DType type : {DType::f8_e4m3, DType::i8}) {
      ProgramBuilder pb(set_, fmt::format("{} to bf16", type));
      const Buffer w = pb.temp("w", {hidden_, width_}, type);
      const Buffer y = pb.temp("y", {hidden_, width_}, DType::bf16);
      ops::fill(pb, pb.view(w, 0, DType::f32, {hidden_, width_ / 4}), 0.5f);
      const Buffer scale = filled(pb, "scale", {hidden_}, DType::f32, 0.5f);
      begin();
      pb.emit("expand", {.reads = {w, scale}, .writes = {y}}, [=](const Bindings& b) {
        on_device(
            b.in(w).device, [] { fail(ErrorCode::usage, "bench kernels measures a GPU"); },
            [&] {
              ops::cuda::expand({.from = b.in(w),
                                 .to = b.out(y),
                                 .scale = {.data = b.in(scale).data, .row_stride = 1}},
                                b.stream().native);
            });
      });
    }
  }

  void record_updates() {
    constexpr std::int64_t kTensors = 8;
    const auto adamw = [&](const char* name, DType p, DType state, UpdateRounding rounding) {
      ProgramBuilder pb(set_, name);
      std::vector<ops::AdamWBuffers> tensors;
      for (std::int64_t t = 0; t < kTensors; ++t) {
        const Shape n = {parameters_ / kTensors};
        tensors.push_back({.p = noise(pb, "p", n, p),
                           .m = filled(pb, "m", n, state, 1e-3f),
                           .v = filled(pb, "v", n, state, 1e-5f),
                           .g = noise(pb, "g", n, p),
                           .options = {},
                           .rounding = {.rounding = rounding}});
      }
      begin();
      ops::adamw(pb, std::move(tensors), {});
    };
    adamw("AdamW, f32", DType::f32, DType::f32, UpdateRounding::nearest);
    adamw("AdamW, bf16", DType::bf16, DType::bf16, UpdateRounding::stochastic);
    const auto adamw_8bit = [&](const char* name, DType p, UpdateRounding rounding) {
      ProgramBuilder pb(set_, name);
      std::vector<ops::AdamW8bitBuffers> tensors;
      for (std::int64_t t = 0; t < kTensors; ++t) {
        const std::int64_t n = parameters_ / kTensors;
        const auto codes = [&](const char* state) {
          const Buffer b = pb.temp(state, {n}, DType::u8);
          ops::fill(pb, b, 100);
          return b;
        };
        const Shape blocks = {n / ops::kStateBlock};
        tensors.push_back({.p = noise(pb, "p", {n}, p),
                           .m = codes("m"),
                           .m_absmax = filled(pb, "m_absmax", blocks, DType::f32, 1e-3f),
                           .v = codes("v"),
                           .v_absmax = filled(pb, "v_absmax", blocks, DType::f32, 1e-5f),
                           .shift = {},
                           .g = noise(pb, "g", {n}, p),
                           .options = {},
                           .rounding = {.rounding = rounding}});
      }
      // The first steps make codes of all kinds.
      ops::adamw_8bit(pb, tensors, {});
      ops::adamw_8bit(pb, tensors, {});
      begin();
      ops::adamw_8bit(pb, std::move(tensors), {});
    };
    adamw_8bit("AdamW, 8 bits, f32", DType::f32, UpdateRounding::nearest);
    adamw_8bit("AdamW, 8 bits, bf16", DType::bf16, UpdateRounding::nearest);
    adamw_8bit("AdamW, 8 bits, bf16, stochastic", DType::bf16, UpdateRounding::stochastic);
    for (const DType type : {DType::f32, DType::bf16}) {
      ProgramBuilder pb(set_, fmt::format("sum of squares, {}", type));
      const Buffer x = noise(pb, "x", {parameters_}, type);
      const Buffer sum = filled(pb, "sum", {1}, DType::f64, 0);
      begin();
      ops::sum_squares(pb, x, sum, ops::sum_squares_scratch(pb, sum));
    }
    for (const std::int64_t part : {4, 16}) {
      ProgramBuilder pb(set_, fmt::format("sum of squares, bf16, {} tensors", part));
      const Buffer x = noise(pb, "x", {parameters_}, DType::bf16);
      const Buffer sum = filled(pb, "sum", {1}, DType::f64, 0);
      begin();
      std::vector<Buffer> parts;
      for (std::int64_t k = 0; k < part; ++k) {
        parts.push_back(pb.slice(x, 0, k * (parameters_ / part), parameters_ / part));
      }
      ops::sum_squares(pb, parts, sum, ops::sum_squares_scratch(pb, sum));
    }
    {
      ProgramBuilder pb(set_, "EMA");
      const Buffer p = noise(pb, "p", {parameters_}, DType::bf16);
      const Buffer shadow = filled(pb, "shadow", {parameters_}, DType::f32, 0.5f);
      begin();
      ops::ema(pb, p, shadow, 0.999);
    }
  }

  // What is recorded from here on is measured.
  void begin() { measured_from_.push_back(set_.programs.back().instructions.size()); }

  std::int64_t rows_, width_, hidden_, parameters_;
  std::vector<std::size_t> measured_from_;  // by program
  ProgramSet set_;
  MemoryPlan plan_;
  std::unique_ptr<Runner> runner_;
};

// ballast bench kernels: what the GPU's memory-bound operations reach of what a copy reaches.
class BenchKernels : public Command {
 public:
  void declare(CLI::App& app) override;
  void run() override;

 private:
  std::int64_t tokens_ = 32760, width_ = 5120, hidden_ = 13824, parameters_ = 1 << 28;
  bool json_ = false;
};

void BenchKernels::declare(CLI::App& app) {
  app.add_option("--tokens", tokens_, "rows of activations")->check(CLI::Range(1, 1 << 20));
  app.add_option("--width", width_, "channels, a multiple of 128")->check(CLI::Range(128, 1 << 16));
  app.add_option("--hidden", hidden_, "of the feed-forward layer")->check(CLI::Range(8, 1 << 18));
  app.add_option("--parameters", parameters_, "that are updated")
      ->check(CLI::Range(1 << 16, 1 << 30));
  app.add_flag("--json", json_, "one JSON document");
}

void BenchKernels::run() {
  const GpuInfo info = open_gpu();
  // Whole blocks of states in every tensor.
  parameters_ = parameters_ / (1 << 16) * (1 << 16);
  KernelPrograms programs({.device = Device::cuda, .sm = info.sm}, tokens_, width_, hidden_,
                          parameters_);
  const auto rows = programs.measure(6);
  const auto rate = [](const auto& row) { return row.bytes / row.seconds; };
  nlohmann::ordered_json j;
  for (const auto& row : rows) {
    const double share = rate(row) / rate(rows[0]);
    j[row.name] = {{"ms", row.seconds * 1e3}, {"GB/s", rate(row) * 1e-9}, {"of_copy", share}};
    if (json_) continue;
    print(fmt::format("  {:<36} {:8.3f} ms {:7.0f} GB/s {:6.1f} % of a copy\n", row.name,
                      row.seconds * 1e3, rate(row) * 1e-9, share * 100));
  }
  if (json_) print(j.dump(2) + "\n");
}

}  // namespace

std::unique_ptr<Command> bench_kernels() { return std::make_unique<BenchKernels>(); }

}  // namespace ballast
