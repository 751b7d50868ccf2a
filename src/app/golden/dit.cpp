// Golden files of the diffusion transformer: dit_forward, dit_grad, dit_lora.

#include "models/wan/dit.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>

#include "app/golden/config.h"
#include "app/golden/results.h"
#include "core/convert.h"
#include "core/error.h"
#include "core/to_size.h"
#include "models/wan/weights.h"
#include "ops/copy.h"
#include "ops/linear/sgemm.h"
#include "plan/runner.h"

namespace ballast {
namespace {

struct DitConfig {
  wan::Config model;
  std::vector<wan::LatentSize> latents;
  std::vector<std::int64_t> text_lens;
  std::int64_t seq_len = 0;
  std::int64_t lora_rank = 0;
  double lora_alpha = 0;
  OptimizerOptions optimizer;
  double learning_rate = 0;
  std::int64_t adamw_steps = 0;
};

void read_adamw(JsonReader& json, DitConfig& c) {
  json.object({
      {"betas",
       [&] {
         const std::vector<double> betas = read_numbers(json, 0, 1);
         if (betas.size() != 2) json.fail_value("betas are two numbers");
         c.optimizer.beta1 = betas[0], c.optimizer.beta2 = betas[1];
       }},
      {"eps", [&] { c.optimizer.eps = read_number(json, 0, 1); }},
      {"lr", [&] { c.learning_rate = read_number(json, 0, 1e3); }},
      {"steps", [&] { c.adamw_steps = json.i64(0, 1000); }},
      {"weight_decay", [&] { c.optimizer.weight_decay = read_number(json, 0, 1e3); }},
  });
}

DitConfig read_config(const GoldenFile& file) {
  constexpr std::int64_t kMax = 1 << 20;
  DitConfig c;
  c.model.name = file.name();
  JsonReader json = file.config();
  json.object({
      {"dim", [&] { c.model.dim = json.i64(1, kMax); }},
      {"ffn_dim", [&] { c.model.ffn_dim = json.i64(1, kMax); }},
      {"freq_dim", [&] { c.model.freq_dim = json.i64(1, kMax); }},
      {"in_dim", [&] { c.model.in_dim = json.i64(1, kMax); }},
      {"out_dim", [&] { c.model.out_dim = json.i64(1, kMax); }},
      {"num_heads", [&] { c.model.heads = json.i64(1, kMax); }},
      {"num_layers", [&] { c.model.layers = json.i64(1, kMax); }},
      {"text_dim", [&] { c.model.text_dim = json.i64(1, kMax); }},
      {"text_len", [&] { c.model.text_len = json.i64(1, kMax); }},
      {"eps", [&] { c.model.eps = static_cast<float>(read_number(json, 1e-12, 1)); }},
      {"seq_len", [&] { c.seq_len = json.i64(1, kMax); }},
      {"text_lens", [&] { c.text_lens = read_sizes(json, 0, kMax); }},
      {"lora_rank", [&] { c.lora_rank = json.i64(1, 1 << 14); }},
      {"lora_alpha", [&] { c.lora_alpha = read_number(json, 0, 1e6); }},
      {"adamw", [&] { read_adamw(json, c); }},
      {"latents",
       [&] {
         json.open_array();
         while (json.next_element()) {
           const std::vector<std::int64_t> size = read_sizes(json, 1, 2048);
           if (size.size() != 3 || size[1] % 2 != 0 || size[2] % 2 != 0) {
             json.fail_value("a latent is [frames, even height, even width]");
           }
           c.latents.push_back({size[0], size[1], size[2]});
         }
       }},
  });
  json.finish();
  if (c.latents.empty()) fail_missing_key(file, "latents");
  if (c.text_lens.size() != c.latents.size()) fail_missing_key(file, "text_lens of every sample");
  for (std::size_t b = 0; b < c.latents.size(); ++b) {
    if (c.text_lens[b] > c.model.text_len || c.latents[b].tokens() > c.seq_len) {
      fail(ErrorCode::input, "{}: sample {} has {} text rows of {} and {} tokens of {}",
           file.path(), b, c.text_lens[b], c.model.text_len, c.latents[b].tokens(), c.seq_len);
    }
  }
  validate(c.model);
  return c;
}

// Distinct timesteps of the batch, and which of them each token has.
struct Timesteps {
  std::vector<double> values;
  std::vector<std::vector<std::int32_t>> rows;  // by sample, seq_len entries

  std::int32_t row_of(double t) {
    const auto it = std::ranges::find(values, t);
    if (it != values.end()) return static_cast<std::int32_t>(it - values.begin());
    values.push_back(t);
    return static_cast<std::int32_t>(values.size() - 1);
  }
};

Timesteps read_timesteps(const GoldenFile& file, const DitConfig& c) {
  Timesteps t;
  const auto batch = static_cast<std::int64_t>(c.latents.size());
  const bool per_token = file.has("in.t_tokens");
  const std::vector<double> values =
      (per_token ? file.load("in.t_tokens", DType::f32, {batch, c.seq_len})
                 : file.load("in.t", DType::f32, {batch}))
          .doubles();
  for (std::int64_t b = 0; b < batch; ++b) {
    auto& rows = t.rows.emplace_back();
    for (std::int64_t l = 0; l < c.seq_len; ++l) {
      const double value = values[to_size(per_token ? b * c.seq_len + l : b)];
      rows.push_back(t.row_of(value));
    }
  }
  return t;
}

// Copies tapped values into buffers that outlive the run.
class CopyTaps : public Taps {
 public:
  CopyTaps(ProgramSet& set, const DitConfig& c) : set_(set), config_(c) {}

  void tap(ProgramBuilder& pb, const std::string& name, int sample, Buffer rows,
           std::int64_t first) override {
    Buffer& all = taken_[name][sample];
    const Shape shape = pb.shape(rows);
    const std::int64_t width = shape.elements() / shape[0];
    if (!all) {
      // Token-local values come in chunks; everything else whole.
      const std::int64_t count = sample >= 0 && shape[0] != config_.model.text_len
                                     ? config_.latents[to_size(sample)].tokens()
                                     : shape[0];
      all = pb.persistent("tap." + name, {std::max(count, shape[0]), width}, DType::f32,
                          Role::output, Tier::host);
    }
    ops::copy(pb, pb.reshape(rows, {shape[0], width}), pb.rows(all, first, shape[0]),
              Lane::download);
  }

  bool has(const std::string& name) const { return taken_.contains(name); }
  const std::map<int, Buffer>& samples(const std::string& name) const { return taken_.at(name); }

 private:
  ProgramSet& set_;
  const DitConfig& config_;
  std::map<std::string, std::map<int, Buffer>> taken_;
};

// A recorded, planned and loaded transformer with the file's inputs.
class DitRun {
 public:
  DitRun(const GoldenFile& file, const VerifyOptions& options, const DitConfig& c, wan::Mode mode,
         bool adapters, bool taps)
      : file_(file), config_(c), timesteps_(read_timesteps(file, c)), taps_(set_, config_) {
    set_.backend = verify_backend(options);
    const bool narrow = options.dtype == DType::bf16;
    wan::DitJob job = {.config = c.model,
                       .mode = mode,
                       .policy = options.policy,
                       .precision = {.activation = options.dtype, .residual = DType::f32},
                       .format = narrow ? WeightFormat::bf16 : WeightFormat::stored,
                       .batches = {{c.latents, std::ssize(timesteps_.values)}},
                       .lora = {.rank = std::max<std::int64_t>(1, c.lora_rank),
                                .alpha = static_cast<float>(c.lora_alpha),
                                .excluded = {}},
                       .adapters_in_inference = adapters && mode == wan::Mode::infer,
                       .input_gradients = true,
                       .record_update = mode == wan::Mode::lora,
                       .optimizer = c.optimizer,
                       .max_grad_norm = 0};
    if (options.fp8_matmul) use_fp8_products(job, set_.backend);
    dit_ = std::make_unique<wan::Dit>(
        set_, std::move(job), weight_groups(c.model, file.checkpoint()), taps ? &taps_ : nullptr);
    plan_ = plan_memory(set_);
    runner_ = std::make_unique<Runner>(set_, plan_);
    if (options.device == Device::cpu) ops::warm_up_blas(runner_->compute_threads());
    runner_->run("load");
    if (mode == wan::Mode::lora) runner_->run("init_state");
    fill_inputs(adapters);
  }

  void step() { runner_->run("step"); }
  void update(std::int64_t step) {
    runner_->run("grad_norm");
    runner_->run("update", {.step = step, .learning_rate = config_.learning_rate});
  }

  const wan::DitIo& io() const { return dit_->io(); }
  TensorView view(Buffer b) { return runner_->view(b); }
  double loss() { return view(io().loss).as<double>()[0]; }

  // A persistent buffer as a result of the given name and shape (its first rows, when smaller).
  GoldenTensor result(std::string name, Buffer b, DType dtype, const Shape& shape) {
    GoldenTensor t = golden_tensor(std::move(name), dtype, shape);
    const TensorView v = view(b);
    std::vector<std::byte> whole(v.bytes());
    runner_->read(b, whole);
    convert(whole.data(), v.dtype, t.data.data(), dtype, shape.elements());
    return t;
  }
  GoldenTensor result(std::string name, Buffer b) {
    return result(std::move(name), b, DType::f32, view(b).shape);
  }

  // mid.*: [B, S, ...] from the samples' rows; rows behind a sample's end do not count.
  GoldenTensor tapped(const std::string& name, const Shape& shape) {
    GoldenTensor t = golden_tensor(name, DType::f32, shape);
    const std::int64_t rows = shape[1], width = shape.elements() / shape[0] / rows;
    for (std::int64_t b = 0; b < shape[0]; ++b) {
      const TensorView v = view(taps_.samples(name).at(static_cast<int>(b)));
      const std::int64_t real = std::min(rows, v.shape[0]);
      std::memcpy(t.data.data() + b * rows * width * 4, v.data, to_size(real * width) * 4);
      for (std::int64_t r = 0; r < rows; ++r) t.counts.push_back(r < real);
    }
    return t;
  }

  // mid.e, mid.e0: one row per sample, or one per token.
  GoldenTensor per_timestep(const std::string& name, const Shape& shape, bool per_token) {
    GoldenTensor t = golden_tensor(name, DType::f32, shape);
    const TensorView v = view(taps_.samples(name).at(-1));
    const std::int64_t rows = per_token ? shape[1] : 1, width = v.shape[1];
    for (std::int64_t b = 0; b < shape[0]; ++b) {
      const auto& index = timesteps_.rows[to_size(b)];
      for (std::int64_t r = 0; r < rows; ++r) {
        std::memcpy(t.data.data() + (b * rows + r) * width * 4,
                    v.data + index[to_size(r)] * width * 4, to_size(width) * 4);
        if (per_token) {
          t.counts.push_back(r < config_.latents[to_size(b)].tokens());
        }
      }
    }
    return t;
  }
  // The embedding of each sample's own timestep.
  GoldenTensor sinusoid(const std::vector<double>& t) {
    const TensorView v = view(taps_.samples("mid.sinusoid").at(-1));
    const std::int64_t width = v.shape[1];
    GoldenTensor out =
        golden_tensor("mid.sinusoid", DType::f64, {static_cast<std::int64_t>(t.size()), width});
    for (std::size_t b = 0; b < t.size(); ++b) {
      const auto row = std::ranges::find(timesteps_.values, t[b]) - timesteps_.values.begin();
      if (row == std::ssize(timesteps_.values)) {
        fail(ErrorCode::input, "{}: in.t has {}, which no token has", file_.path(), t[b]);
      }
      convert(v.as<float>() + row * width, DType::f32,
              out.view().as<double>() + static_cast<std::int64_t>(b) * width, DType::f64, width);
    }
    return out;
  }
  bool has_tap(const std::string& name) const { return taps_.has(name); }
  const float* rope() { return view(taps_.samples("mid.rope").at(0)).as<float>(); }

 private:
  void put(Buffer to, const GoldenTensor& from) {
    const TensorView v = view(to);
    std::vector<std::byte> whole(v.bytes());
    convert(from.data.data(), from.dtype, whole.data(), v.dtype, from.shape.elements());
    runner_->write(to, whole);
  }

  void fill_inputs(bool adapters) {
    const wan::DitIo& io = dit_->io();
    std::ranges::copy(timesteps_.values, view(io.runs[0].timesteps).as<double>());
    for (std::size_t b = 0; b < io.runs[0].samples.size(); ++b) {
      const wan::DitSampleIo& s = io.runs[0].samples[b];
      const wan::LatentSize& z = config_.latents[b];
      const auto input = [&](const char* what, const Shape& shape) {
        return file_.load(fmt::format("in.{}.{}", what, b), DType::f32, shape);
      };
      const wan::Config& m = config_.model;
      put(s.latent, input("latent", {m.out_dim, z.frames, z.height, z.width}));
      if (s.conditioning) {
        put(s.conditioning, input("y", {m.conditioning(), z.frames, z.height, z.width}));
      }
      put(s.context, input("context", {config_.text_lens[b], m.text_dim}));
      if (s.target) put(s.target, input("target", {m.out_dim, z.frames, z.height, z.width}));
      const std::span rows(timesteps_.rows[b].data(), to_size(z.tokens()));
      runner_->write(s.timestep_row, std::as_bytes(rows));
    }
    if (!adapters) return;
    for (const AdapterIo& a : io.adapters) {
      const std::string name = "diffusion_model." + a.name;
      put(a.a, file_.load(name + ".lora_A.weight", DType::f32, view(a.a).shape));
      put(a.b, file_.load(name + ".lora_B.weight", DType::f32, view(a.b).shape));
    }
  }

  const GoldenFile& file_;
  const DitConfig& config_;
  Timesteps timesteps_;
  ProgramSet set_;
  CopyTaps taps_;
  std::unique_ptr<wan::Dit> dit_;
  MemoryPlan plan_;
  std::unique_ptr<Runner> runner_;
};

void add_outputs(DitRun& run, std::vector<GoldenTensor>& results) {
  for (std::size_t b = 0; b < run.io().runs[0].samples.size(); ++b) {
    results.push_back(run.result(fmt::format("out.{}", b), run.io().runs[0].samples[b].output));
  }
}

// What the network derives from sizes and timesteps alone.
void add_tables(const GoldenFile& file, const DitConfig& c, DitRun& run,
                std::vector<GoldenTensor>& results) {
  const auto batch = static_cast<std::int64_t>(c.latents.size());
  results.push_back(run.sinusoid(file.load("in.t", DType::f32, {batch}).doubles()));
  const wan::LatentSize& z = c.latents[0];
  const std::int64_t pairs = c.model.head_dim() / 2;
  GoldenTensor cos = golden_tensor("mid.rope_cos", DType::f64, {z.tokens(), pairs});
  GoldenTensor sin = golden_tensor("mid.rope_sin", DType::f64, {z.tokens(), pairs});
  const float* table = run.rope();  // [L, D/2, 2]
  for (std::int64_t i = 0; i < z.tokens() * pairs; ++i) {
    cos.view().as<double>()[i] = table[2 * i];
    sin.view().as<double>()[i] = table[2 * i + 1];
  }
  results.push_back(std::move(cos));
  results.push_back(std::move(sin));
  GoldenTensor grid = golden_tensor("mid.rope_grid", DType::i64, {3});
  std::ranges::copy(z.grid(), grid.view().as<std::int64_t>());
  results.push_back(std::move(grid));
  GoldenTensor lens = golden_tensor("mid.seq_lens", DType::i64, {batch});
  for (std::size_t b = 0; b < c.latents.size(); ++b) {
    lens.view().as<std::int64_t>()[b] = c.latents[b].tokens();
  }
  results.push_back(std::move(lens));
}

std::vector<GoldenTensor> forward(const GoldenFile& file, const VerifyOptions& options,
                                  const DitConfig& c) {
  DitRun run(file, options, c, wan::Mode::infer, false, true);
  run.step();
  std::vector<GoldenTensor> results;
  add_outputs(run, results);
  add_tables(file, c, run, results);
  for (const SafetensorsEntry& e : file.entries()) {
    const std::string name(e.name);
    if (!run.has_tap(name) || name == "mid.sinusoid") continue;
    if (name == "mid.e" || name == "mid.e0") {
      results.push_back(run.per_timestep(name, e.shape, file.has("in.t_tokens")));
    } else {
      results.push_back(run.tapped(name, e.shape));
    }
  }
  return results;
}

GoldenTensor scalar(std::string name, double value) {
  const float f = static_cast<float>(value);
  return golden_tensor(std::move(name), {}, std::span(&f, 1));
}

std::vector<GoldenTensor> gradients(const GoldenFile& file, const VerifyOptions& options,
                                    const DitConfig& c) {
  DitRun run(file, options, c, wan::Mode::full, false, false);
  run.step();
  std::vector<GoldenTensor> results;
  add_outputs(run, results);
  results.push_back(scalar("out.loss", run.loss()));
  for (const NamedGradient& g : run.io().gradients) {
    results.push_back(run.result("grad." + g.name, g.gradient));
  }
  for (std::size_t b = 0; b < c.latents.size(); ++b) {
    const wan::DitSampleIo& s = run.io().runs[0].samples[b];
    results.push_back(run.result(fmt::format("grad.in.latent.{}", b), s.dlatent));
    results.push_back(run.result(fmt::format("grad.in.context.{}", b), s.dcontext, DType::f32,
                                 {c.text_lens[b], c.model.text_dim}));
  }
  return results;
}

std::vector<GoldenTensor> lora(const GoldenFile& file, const VerifyOptions& options,
                               const DitConfig& c) {
  if (c.lora_rank == 0) fail_missing_key(file, "lora_rank");
  std::vector<GoldenTensor> results;
  {
    DitRun base(file, options, c, wan::Mode::infer, false, false);
    base.step();
    for (std::size_t b = 0; b < c.latents.size(); ++b) {
      results.push_back(
          base.result(fmt::format("out.base.{}", b), base.io().runs[0].samples[b].output));
    }
  }
  DitRun run(file, options, c, wan::Mode::lora, true, false);
  run.step();
  add_outputs(run, results);
  results.push_back(scalar("out.loss", run.loss()));
  const auto factors = [&](const std::string& prefix, Buffer AdapterIo::*a, Buffer AdapterIo::*b) {
    for (const AdapterIo& io : run.io().adapters) {
      const std::string name = prefix + "diffusion_model." + io.name;
      results.push_back(run.result(name + ".lora_A.weight", io.*a));
      results.push_back(run.result(name + ".lora_B.weight", io.*b));
    }
  };
  factors("grad.", &AdapterIo::da, &AdapterIo::db);
  std::vector<float> losses = {static_cast<float>(run.loss())};
  for (std::int64_t step = 1; step <= c.adamw_steps; ++step) {
    run.update(step);
    run.step();
    losses.push_back(static_cast<float>(run.loss()));
  }
  results.push_back(
      golden_tensor("out.adamw.losses", {static_cast<std::int64_t>(losses.size())}, losses));
  factors("out.adamw.", &AdapterIo::a, &AdapterIo::b);
  return results;
}

}  // namespace

std::vector<GoldenTensor> recompute_dit(const GoldenFile& file, const VerifyOptions& options) {
  const DitConfig c = read_config(file);
  if (file.case_name() == "dit_forward") return forward(file, options, c);
  if (file.case_name() == "dit_grad") return gradients(file, options, c);
  return lora(file, options, c);
}

}  // namespace ballast
