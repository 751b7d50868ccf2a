#pragma once

// Small random diffusion transformers: their checkpoint files, batches for them, and runs of them.

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/convert.h"
#include "core/random.h"
#include "core/to_size.h"
#include "io/safetensors_writer.h"
#include "models/wan/dit.h"
#include "models/wan/weights.h"
#include "plan/runner.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_device.h"

namespace ballast::support {

inline wan::Config tiny_config() {
  return {.name = "tiny",
          .description = "",
          .dim = 64,
          .ffn_dim = 96,
          .heads = 2,
          .layers = 3,
          .in_dim = 6,
          .out_dim = 4,
          .freq_dim = 16,
          .text_dim = 20,
          .text_len = 12};
}

inline std::vector<float> normal_values(const std::string& site, std::int64_t n, double scale,
                                        double offset = 0) {
  std::vector<float> v(to_size(n));
  fill_normal(random_source(7, "tiny_dit", 0, site), 0, v.data(), n);
  for (float& x : v) x = static_cast<float>(offset + scale * x);
  return v;
}

// Matrices keep the size of what they multiply; gains are near one; vectors are small.
inline std::vector<float> parameter_values(const std::string& name, const Shape& shape) {
  const bool gain = name.find("norm") != std::string::npos && name.ends_with("weight");
  if (gain) return normal_values(name, shape.elements(), 0.2, 1);
  if (shape.rank() == 1 || shape[0] == 1) return normal_values(name, shape.elements(), 0.2);
  const double fan_in = static_cast<double>(shape.elements() / shape[0]);
  return normal_values(name, shape.elements(), 1 / std::sqrt(fan_in));
}

// A checkpoint with a random weight under every official name. f8_e4m3: the matrices of the blocks,
// each with one scale beside it, everything else bf16.
class TinyCheckpoint {
 public:
  // kind: weights of one name differ between kinds.
  explicit TinyCheckpoint(const wan::Config& config, DType stored = DType::f32,
                          const std::string& kind = "") {
    std::vector<std::vector<std::byte>> kept;
    std::vector<float> scales;
    kept.reserve(4096), scales.reserve(4096);  // the writer holds on to their addresses
    SafetensorsWriter writer;
    const bool f8 = stored == DType::f8_e4m3;
    each_parameter(config, [&](int group, const std::string& name, const Shape& shape) {
      std::vector<float> values = parameter_values(kind + name, shape);
      const bool block_matrix = shape.rank() == 2 && group > 0 && group <= config.layers;
      const DType dtype = !f8 ? stored : block_matrix ? DType::f8_e4m3 : DType::bf16;
      if (f8 && block_matrix) {
        scales.push_back(0.01f + 0.001f * static_cast<float>(scales.size() % 7));
        for (float& v : values) v /= scales.back();
        writer.add(name.substr(0, name.size() - 6) + "scale_weight", DType::f32, Shape{},
                   std::as_bytes(std::span(&scales.back(), 1)));
      }
      auto& bytes = kept.emplace_back(values.size() * size_of(dtype));
      convert(values.data(), DType::f32, bytes.data(), dtype, shape.elements(),
              Rounding::saturating);
      writer.add(name, dtype, shape, bytes);
    });
    writer.write(path());
  }

  std::string path() const { return dir_.path("tiny.safetensors"); }

 private:
  test::TempDir dir_;
};

// Samples and timesteps of one step.
struct TinyBatch {
  std::vector<wan::LatentSize> latents;
  std::vector<double> timesteps;                // distinct ones
  std::vector<std::vector<std::int32_t>> rows;  // by sample: of each token
  std::vector<std::int64_t> text_lens;          // by sample; text rows behind are zero
  std::size_t first = 0;                        // number of the first sample: decides its values
};

// Tokens of sample i have timestep i, except the first frame of the first, which has the last one.
inline TinyBatch tiny_batch(std::vector<wan::LatentSize> latents, std::int64_t text_len) {
  TinyBatch b;
  b.latents = std::move(latents);
  for (std::size_t i = 0; i < b.latents.size(); ++i) {
    b.timesteps.push_back(875.5 - 310.25 * static_cast<double>(i));
    b.rows.emplace_back(to_size(b.latents[i].tokens()), static_cast<std::int32_t>(i));
    b.text_lens.push_back(std::max<std::int64_t>(1, text_len - 5 * static_cast<std::int64_t>(i)));
  }
  b.timesteps.push_back(0);
  const auto first_frame = b.latents[0].tokens() / b.latents[0].frames;
  std::fill_n(b.rows[0].begin(), first_frame, static_cast<std::int32_t>(b.latents.size()));
  return b;
}

inline constexpr LoraOptions kTinyLora = {.rank = 3, .alpha = 6};
inline constexpr double kAdapterSize = 0.2;  // standard deviation of the factors

struct TinyJob {
  wan::Mode mode = wan::Mode::infer;
  MemoryPolicy policy = {};
  Precision precision = {};
  WeightFormat format = WeightFormat::stored;
  int threads = 2;
  DiskMode disk = DiskMode::automatic;
  bool update = false;
  bool fp8_matmul = false;
  PlanOptions plan = {};
  RunnerDebug debug = {};
};

using Results = std::map<std::string, std::vector<std::byte>>;

// The first tensor in which two results differ, and where; empty when they have the same bits.
inline std::string difference(const Results& a, const Results& b) {
  if (a.size() != b.size()) return fmt::format("{} tensors, {} tensors", a.size(), b.size());
  for (const auto& [name, bytes] : a) {
    const auto other = b.find(name);
    if (other == b.end() || other->second.size() != bytes.size()) return name + " has no partner";
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (bytes[i] != other->second[i]) return fmt::format("{} at byte {}", name, i);
    }
  }
  return {};
}

// A recorded, planned and loaded transformer with its inputs in place, on the device that tests run
// on. A GPU computes in bf16 whatever the job says.
class TinyDit {
 public:
  TinyDit(const wan::Config& config, const std::string& checkpoint, const TinyBatch& batch,
          const TinyJob& job)
      : checkpoint_(WeightFiles::open(checkpoint, job.disk)), names_(checkpoint_), job_(job) {
    set_.backend = {.device = test_device(), .threads = job.threads};
    Precision precision = job.precision;
    if (test_device() == Device::cuda) {
      set_.backend.sm = open_gpu().sm;
      if (precision.activation == DType::f32) precision = precision_on(Device::cuda);
    }
    dit_ = std::make_unique<wan::Dit>(
        set_,
        wan::DitJob{.config = config,
                    .mode = job.mode,
                    .policy = job.policy,
                    .precision = precision,
                    .format = job.format,
                    .fp8_matmul = job.fp8_matmul,
                    .batches = {{batch.latents, std::ssize(batch.timesteps)}},
                    .lora = kTinyLora,
                    .adapters_in_inference = false,
                    .input_gradients = true,
                    .record_update = job.update,
                    .optimizer = {},
                    .max_grad_norm = 0.5},
        weight_groups(config, checkpoint_, names_));
    plan_ = plan_memory(set_, job.plan);
    runner_ =
        std::make_unique<Runner>(set_, plan_, RunnerOptions{.disk_readers = 2, .debug = job.debug});
    runner_->run("load");
    if (job.update) runner_->run("init_state");
    fill_inputs(config, batch);
  }

  void step() { runner_->run("step"); }
  void update() {
    runner_->run("grad_norm");
    runner_->run("update", {.step = 1, .learning_rate = 0.01});
  }
  // A step; with the update program also the update and another step, which shows what it changed.
  Results run() {
    step();
    Results r;
    collect("", r);
    if (!job_.update) return r;
    update();
    step();
    collect("updated.", r);
    return r;
  }

  const wan::DitIo& io() const { return dit_->io(); }
  TensorView view(Buffer b) { return runner_->view(b); }
  std::vector<std::byte> bytes(Buffer b) {
    std::vector<std::byte> all(runner_->spec(b).bytes);
    runner_->read(b, all);
    return all;
  }
  double loss() { return view(io().loss).as<double>()[0]; }
  const ProgramSet& set() const { return set_; }
  const MemoryPlan& plan() const { return plan_; }
  Runner& runner() { return *runner_; }

 private:
  void fill_inputs(const wan::Config& c, const TinyBatch& batch) {
    const auto put = [&](Buffer to, const std::string& name, std::int64_t count, double scale = 1) {
      std::vector<float> values = normal_values(name, count, scale);
      values.resize(to_size(view(to).elements()));
      runner_->write(to, std::as_bytes(std::span(values)));
    };
    std::copy(batch.timesteps.begin(), batch.timesteps.end(),
              view(io().runs[0].timesteps).as<double>());
    for (std::size_t i = 0; i < batch.latents.size(); ++i) {
      const wan::DitSampleIo& s = io().runs[0].samples[i];
      const std::string n = std::to_string(batch.first + i);
      put(s.latent, "latent" + n, view(s.latent).elements());
      if (s.conditioning) put(s.conditioning, "y" + n, view(s.conditioning).elements());
      put(s.context, "context" + n, batch.text_lens[i] * c.text_dim);
      if (s.target) put(s.target, "target" + n, view(s.target).elements());
      runner_->write(s.timestep_row, std::as_bytes(std::span(batch.rows[i])));
    }
    for (const AdapterIo& a : io().adapters) {
      put(a.a, a.name + ".a", view(a.a).elements(), kAdapterSize);
      put(a.b, a.name + ".b", view(a.b).elements(), kAdapterSize);
    }
  }

  void collect(const std::string& prefix, Results& r) {
    const auto take = [&](const std::string& name, Buffer b) {
      if (b) r[prefix + name] = bytes(b);
    };
    for (std::size_t i = 0; i < io().runs[0].samples.size(); ++i) {
      const wan::DitSampleIo& s = io().runs[0].samples[i];
      take(fmt::format("output.{}", i), s.output);
      take(fmt::format("dlatent.{}", i), s.dlatent);
      take(fmt::format("dcontext.{}", i), s.dcontext);
    }
    take("loss", io().loss);
    take("grad_norm", io().grad_norm);
    for (const NamedGradient& g : io().gradients) take(g.name, g.gradient);
    for (const AdapterIo& a : io().adapters) {
      take(a.name + ".a", a.a), take(a.name + ".b", a.b);
      take(a.name + ".da", a.da), take(a.name + ".db", a.db);
    }
  }

  WeightFiles checkpoint_;
  wan::TensorMap names_;
  TinyJob job_;
  ProgramSet set_;
  std::unique_ptr<wan::Dit> dit_;
  MemoryPlan plan_;
  std::unique_ptr<Runner> runner_;
};

}  // namespace ballast::support
