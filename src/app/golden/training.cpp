// The cases about the arithmetic of training: AdamW and clipping, flow matching.

#include <cmath>
#include <cstring>

#include "app/golden/config.h"
#include "app/golden/results.h"
#include "core/error.h"
#include "core/thread_pool.h"
#include "memory/gpu.h"
#include "ops/adamw.h"
#include "ops/flow_loss.h"
#include "ops/flow_noise.h"
#include "ops/global_norm.h"
#include "ops/kernels/ordered_sum_cuda.h"

namespace ballast {
namespace {

// Gives single operations the tensors of a golden file where the device can reach them.
//
//   ops::scale_by({.factor = device.in(factor), .x = device.out(x)}, device.stream());
//   device.synchronize();  // x has the result
//
// On the CPU the views are handed through.
class GoldenDevice {
 public:
  explicit GoldenDevice(const VerifyOptions& options);

  ConstTensorView in(const ConstTensorView& host);
  TensorView out(const TensorView& host);  // read and written
  Stream stream();
  void synchronize();

 private:
  struct Copy {
    GpuArena memory;
    TensorView host;  // data is null: was only read
  };
  TensorView upload(const ConstTensorView& host);

  ThreadPool pool_;
  std::unique_ptr<GpuQueue> queue_;  // none on the CPU
  GpuArena scratch_;                 // of its operations
  std::vector<Copy> copies_;
};

GoldenDevice::GoldenDevice(const VerifyOptions& options) : pool_(thread_count(options)) {
  if (verify_backend(options).device == Device::cpu) return;
  queue_ = std::make_unique<GpuQueue>();
  scratch_ = GpuArena(Bytes{ops::cuda::kColumnScratchBytes}, "sums of a golden file");
}

TensorView GoldenDevice::upload(const ConstTensorView& host) {
  check(host.contiguous(), "a golden tensor {} has gaps", host.shape);
  Copy& c = copies_.emplace_back();
  c.memory = GpuArena(Bytes{std::max<std::uint64_t>(host.bytes(), 1)}, "a golden tensor");
  gpu_copy(c.memory.base(), host.data, {host.bytes()});
  return TensorView(c.memory.base(), host.dtype, host.shape, Device::cuda);
}

ConstTensorView GoldenDevice::in(const ConstTensorView& host) {
  return queue_ ? upload(host) : host;
}

TensorView GoldenDevice::out(const TensorView& host) {
  if (!queue_) return host;
  const TensorView there = upload(host);
  copies_.back().host = host;
  return there;
}

Stream GoldenDevice::stream() {
  if (!queue_) return {.pool = &pool_};
  Stream stream = queue_->stream(&pool_);
  stream.scratch = scratch_.base();
  return stream;
}

void GoldenDevice::synchronize() {
  if (!queue_) return;
  queue_->finish();
  for (const Copy& c : copies_) {
    if (c.host) gpu_copy(c.host.data, c.memory.base(), {c.host.bytes()});
  }
  copies_.clear();
}

struct AdamWSetting {
  ops::AdamWOptions options;
  double learning_rate = 0;
};

struct OptimizerConfig {
  std::vector<AdamWSetting> settings;
  std::vector<double> max_norms;
  std::int64_t steps = 0;
};

AdamWSetting read_adamw(JsonReader& json) {
  AdamWSetting s;
  int read = 0;
  json.open_object();
  for (std::string_view key; json.next_key(key); ++read) {
    if (key == "betas") {
      const std::vector<double> betas = read_numbers(json, 0, 1);
      if (betas.size() != 2) json.fail_here("betas are two numbers");
      s.options.beta1 = betas[0];
      s.options.beta2 = betas[1];
    } else if (key == "eps") {
      s.options.eps = read_number(json, 0, 1);
    } else if (key == "lr") {
      s.learning_rate = read_number(json, 0, 1e6);
    } else if (key == "weight_decay") {
      s.options.weight_decay = read_number(json, 0, 1e6);
    } else {
      json.skip();
      --read;
    }
  }
  if (read != 4) json.fail_here("betas, eps, lr and weight_decay are wanted, once each");
  return s;
}

OptimizerConfig read_optimizer_config(const GoldenFile& file) {
  OptimizerConfig c;
  JsonReader json = file.config();
  json.object({
      {"configs",
       [&] {
         json.open_array();
         while (json.next_element()) {
           if (c.settings.size() == kGoldenListMembers) json.fail_here("too many settings");
           c.settings.push_back(read_adamw(json));
         }
       }},
      {"max_norms", [&] { c.max_norms = read_numbers(json, 0, 1e30); }},
      {"steps", [&] { c.steps = json.i64(1, 1'000'000); }},
  });
  json.finish();
  if (c.settings.empty()) fail_missing_key(file, "configs");
  if (c.steps == 0) fail_missing_key(file, "steps");
  if (c.max_norms.empty()) fail_missing_key(file, "max_norms");
  return c;
}

// Row i of out.configK.{p,m,v} is the state after step i + 1.
void recompute_adamw(const GoldenFile& file, const AdamWSetting& setting, std::size_t k,
                     std::int64_t steps, GoldenDevice& device, std::vector<GoldenTensor>& results) {
  const auto name = [&](std::string_view side, std::string_view what) {
    return fmt::format("{}.config{}.{}", side, k, what);
  };
  GoldenTensor p = file.load(name("in", "p0"));
  if (p.dtype != DType::f32 || p.shape.rank() != 1) {
    fail(ErrorCode::input, "{}: {} is {} {}, expected f32 of one dimension", file.path(), p.name,
         p.dtype, p.shape);
  }
  const std::int64_t n = p.shape[0];
  const GoldenTensor grads = file.load(name("in", "grads"), DType::f32, {steps, n});
  GoldenTensor m = golden_tensor("m", DType::f32, {n});
  GoldenTensor v = golden_tensor("v", DType::f32, {n});
  GoldenTensor all_p = golden_tensor(name("out", "p"), DType::f32, {steps, n});
  GoldenTensor all_m = golden_tensor(name("out", "m"), DType::f32, {steps, n});
  GoldenTensor all_v = golden_tensor(name("out", "v"), DType::f32, {steps, n});
  for (std::int64_t i = 0; i < steps; ++i) {
    ConstTensorView g = grads.view().rows(i, 1);
    g.shape = {n};
    g.strides = {1};
    ops::adamw({.p = device.out(p.view()),
                .m = device.out(m.view()),
                .v = device.out(v.view()),
                .g = device.in(g),
                .grad_scale = {},
                .options = setting.options,
                .step = i + 1,
                .learning_rate = setting.learning_rate},
               device.stream());
    device.synchronize();
    if (n == 0) continue;
    std::memcpy(all_p.view().rows(i, 1).data, p.data.data(), p.data.size());
    std::memcpy(all_m.view().rows(i, 1).data, m.data.data(), m.data.size());
    std::memcpy(all_v.view().rows(i, 1).data, v.data.data(), v.data.size());
  }
  results.push_back(std::move(all_p));
  results.push_back(std::move(all_m));
  results.push_back(std::move(all_v));
}

void recompute_clip(const GoldenFile& file, double max_norm, std::size_t k, GoldenDevice& device,
                    std::vector<GoldenTensor>& results) {
  std::vector<GoldenTensor> grads;
  for (std::size_t j = 0;; ++j) {
    const std::string name = fmt::format("in.clip{}.grad.{}", k, j);
    if (j > 0 && !file.has(name)) break;
    grads.push_back(file.load(name));
    GoldenTensor& g = grads.back();
    if (g.dtype != DType::f32) {
      fail(ErrorCode::input, "{}: {} is {}", file.path(), name, g.dtype);
    }
    g.name = fmt::format("out.clip{}.grad.{}", k, j);
  }
  double sum = 0;
  float factor = 0;
  GoldenTensor norm = golden_tensor(fmt::format("out.clip{}.norm", k), DType::f32, {});
  const TensorView sum_view(reinterpret_cast<std::byte*>(&sum), DType::f64, {1});
  const TensorView factor_view(reinterpret_cast<std::byte*>(&factor), DType::f32, {1});
  for (const GoldenTensor& g : grads) {
    ops::sum_squares({.x = device.in(g.view()), .sum = device.out(sum_view)}, device.stream());
    device.synchronize();
  }
  ops::clip_factor({.sum = device.in(sum_view),
                    .max_norm = max_norm,
                    .factor = device.out(factor_view),
                    .norm = device.out(TensorView(norm.data.data(), DType::f32, {1}))},
                   device.stream());
  device.synchronize();
  results.push_back(std::move(norm));
  for (GoldenTensor& g : grads) {
    ops::scale_by({.factor = device.in(factor_view), .x = device.out(g.view())}, device.stream());
    device.synchronize();
    results.push_back(std::move(g));
  }
}

struct FlowConfig {
  double train_timesteps = 0;
  std::vector<double> shifts;
};

FlowConfig read_flow_config(const GoldenFile& file) {
  FlowConfig c;
  JsonReader json = file.config();
  json.object({
      {"num_train_timesteps", [&] { c.train_timesteps = read_number(json, 1, 1e9); }},
      {"shifts", [&] { c.shifts = read_numbers(json, 1e-6, 1e6); }},
  });
  json.finish();
  if (c.train_timesteps == 0) fail_missing_key(file, "num_train_timesteps");
  if (c.shifts.empty()) fail_missing_key(file, "shifts");
  return c;
}

// result[i] = f(in[i]), computed in f64.
template <class F>
GoldenTensor mapped(std::string name, const GoldenTensor& in, F&& f) {
  GoldenTensor result = golden_tensor(std::move(name), DType::f32, in.shape);
  const float* from = in.view().as<float>();
  float* to = result.view().as<float>();
  for (std::int64_t i = 0; i < in.shape.elements(); ++i) {
    to[i] = static_cast<float>(f(static_cast<double>(from[i])));
  }
  return result;
}

GoldenTensor load_f32(const GoldenFile& file, std::string_view name) {
  GoldenTensor t = file.load(name);
  if (t.dtype != DType::f32) {
    fail(ErrorCode::input, "{}: {} is {}, expected f32", file.path(), name, t.dtype);
  }
  return t;
}

// One sample of the batch, as a view.
template <class Tensor>
auto sample(Tensor& t, std::int64_t b) {
  return t.view().rows(b, 1);
}

void recompute_noising(const GoldenFile& file, GoldenDevice& device,
                       std::vector<GoldenTensor>& results) {
  const GoldenTensor x0 = load_f32(file, "in.x0");
  if (x0.shape.rank() == 0 || x0.shape.elements() == 0) {
    fail(ErrorCode::input, "{}: in.x0 is {}", file.path(), x0.shape);
  }
  const std::int64_t batch = x0.shape[0];
  const GoldenTensor noise = file.load("in.noise", DType::f32, x0.shape);
  const GoldenTensor pred = file.load("in.pred", DType::f32, x0.shape);
  const GoldenTensor t = file.load("in.t", DType::f32, {batch});
  GoldenTensor x_t = golden_tensor("out.x_t", DType::f32, x0.shape);
  GoldenTensor target = golden_tensor("out.target", DType::f32, x0.shape);
  GoldenTensor dpred = golden_tensor("out.grad_pred", DType::f32, x0.shape);
  std::vector<float> losses;
  double loss = 0;
  for (std::int64_t b = 0; b < batch; ++b) {
    ops::flow_noise({.x0 = device.in(sample(x0, b)),
                     .noise = device.in(sample(noise, b)),
                     .t = device.in(sample(t, b)),
                     .x_t = device.out(sample(x_t, b)),
                     .target = device.out(sample(target, b))},
                    device.stream());
    device.synchronize();
    double part = 0;  // this sample's share of the batch's mean
    const TensorView share(reinterpret_cast<std::byte*>(&part), DType::f64, {1});
    ops::flow_loss({.pred = device.in(sample(pred, b)),
                    .target = device.in(sample(target, b)),
                    .weight = 1 / static_cast<double>(x0.shape.elements()),
                    .loss = device.out(share),
                    .dpred = device.out(sample(dpred, b))},
                   device.stream());
    device.synchronize();
    losses.push_back(static_cast<float>(part * static_cast<double>(batch)));
    loss += part;
  }
  const float mean = static_cast<float>(loss);
  results.push_back(std::move(x_t));
  results.push_back(std::move(target));
  results.push_back(std::move(dpred));
  results.push_back(golden_tensor("out.loss_per_sample", {batch}, losses));
  results.push_back(golden_tensor("out.loss", {}, std::span(&mean, 1)));
}

}  // namespace

std::vector<GoldenTensor> recompute_optimizer(const GoldenFile& file,
                                              const VerifyOptions& options) {
  const OptimizerConfig config = read_optimizer_config(file);
  GoldenDevice device(options);
  std::vector<GoldenTensor> results;
  for (std::size_t k = 0; k < config.settings.size(); ++k) {
    recompute_adamw(file, config.settings[k], k, config.steps, device, results);
  }
  for (std::size_t k = 0; k < config.max_norms.size(); ++k) {
    recompute_clip(file, config.max_norms[k], k, device, results);
  }
  return results;
}

// t_shifted = s t / (1 + (s - 1) t);  a logit-normal t is sigmoid(z)
std::vector<GoldenTensor> recompute_flow_matching(const GoldenFile& file,
                                                  const VerifyOptions& options) {
  const FlowConfig config = read_flow_config(file);
  GoldenDevice device(options);
  std::vector<GoldenTensor> results;
  recompute_noising(file, device, results);
  results.push_back(mapped("out.timestep", load_f32(file, "in.t"),
                           [&](double t) { return config.train_timesteps * t; }));
  const GoldenTensor u = load_f32(file, "in.u");
  for (const double s : config.shifts) {
    results.push_back(mapped(fmt::format("out.shifted_t.shift{}", s), u,
                             [&](double t) { return s * t / (1 + (s - 1) * t); }));
  }
  results.push_back(mapped("out.logit_normal_t", load_f32(file, "in.z"),
                           [](double z) { return 1 / (1 + std::exp(-z)); }));
  return results;
}

}  // namespace ballast
