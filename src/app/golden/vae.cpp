// The Wan video autoencoders: encode, decode, round trip, results of stages, gradients.

#include "models/wan_vae/vae.h"

#include <algorithm>
#include <map>
#include <memory>

#include "app/golden/config.h"
#include "app/golden/results.h"
#include "core/error.h"
#include "core/to_size.h"
#include "models/wan_vae/gradients.h"
#include "ops/copy.h"
#include "ops/linear/sgemm.h"
#include "plan/runner.h"

namespace ballast {
namespace {

struct VaeCase {
  wan_vae::Config model;
  std::vector<std::int64_t> frames;
  std::int64_t grad_frames = 0, roundtrip_frames = 0, stage_frames = 0;
  std::int64_t height = 0, width = 0;  // of pixels
  std::vector<float> mean, std;

  std::int64_t rows() const { return height / model.pixels_per_latent(); }
  std::int64_t columns() const { return width / model.pixels_per_latent(); }
  Shape video(std::int64_t n) const { return {3, n, height, width}; }
  Shape latent(std::int64_t f) const { return {model.z_dim, f, rows(), columns()}; }
  wan_vae::LatentFrame latent_frames(std::int64_t f) const {
    return {.statistics = {mean, std},
            .channels = model.z_dim,
            .frames = f,
            .positions = rows() * columns()};
  }
};

VaeCase read_case(const GoldenFile& file) {
  constexpr std::int64_t kMaxFrames = 1 << 16, kMaxWidth = 4096;
  VaeCase c;
  std::string kind;
  std::int64_t dim = 0, dec_dim = 0;
  JsonReader json = file.config();
  json.object({
      {"kind", [&] { kind = json.string(); }},
      {"dim", [&] { dim = json.i64(1, kMaxWidth); }},
      {"dec_dim", [&] { dec_dim = json.i64(1, kMaxWidth); }},
      {"z_dim", [&] { c.model.z_dim = json.i64(1, kMaxWidth); }},
      {"frames", [&] { c.frames = read_sizes(json, 1, kMaxFrames); }},
      {"grad_frames", [&] { c.grad_frames = json.i64(1, kMaxFrames); }},
      {"roundtrip_frames", [&] { c.roundtrip_frames = json.i64(1, kMaxFrames); }},
      {"stage_frames", [&] { c.stage_frames = json.i64(1, kMaxFrames); }},
      {"size",
       [&] {
         const std::vector<std::int64_t> size = read_sizes(json, 1, 1 << 14);
         if (size.size() != 2) json.fail_here("a size is height and width");
         c.height = size[0];
         c.width = size[1];
       }},
  });
  json.finish();
  if (kind != "wan2.1" && kind != "wan2.2") {
    fail(ErrorCode::input,
         "{}: golden.config: a VAE of the kind {}, expected wan2.1 "
         "or wan2.2",
         file.path(), printable(kind));
  }
  if (dim == 0) fail_missing_key(file, "dim");
  if (c.height == 0) fail_missing_key(file, "size");
  c.model.name = kind;
  c.model.generation = kind == "wan2.1" ? wan_vae::Generation::wan21 : wan_vae::Generation::wan22;
  c.model.encoder_dim = dim;
  c.model.decoder_dim = dec_dim > 0 ? dec_dim : dim;
  const std::int64_t side = c.model.pixels_per_latent();
  if (c.height % side != 0 || c.width % side != 0) {
    fail(ErrorCode::input, "{}: golden.config: {} x {} pixels are no multiples of {}", file.path(),
         c.height, c.width, side);
  }
  c.mean = file.load("in.latent_mean", DType::f32, {c.model.z_dim}).floats();
  c.std = file.load("in.latent_std", DType::f32, {c.model.z_dim}).floats();
  return c;
}

// What of a policy's choices the VAE has: streamed weights, histories on the host, frames one by
// one.
wan_vae::Policy vae_policy(const MemoryPolicy& p) {
  return {.slices = p.chunk_tokens > 0,
          .streamed_units = p.streams() ? ~std::size_t{} : 0,
          .ahead = std::max(0, p.stream().slots - 1),
          .hosted_histories = p.offload ? wan_vae::FrameCaches::kDecoder : 0};
}

// Joins what the programs' runs make of every stage, in time.
class VaeTaps : public Taps {
 public:
  void tap(ProgramBuilder& pb, const std::string& name, int, Buffer frames,
           std::int64_t first) override {
    const Buffer to =
        pb.persistent("tap." + name, pb.shape(frames), DType::f32, Role::output, Tier::host);
    ops::copy(pb, frames, to, Lane::download);
    taken_[pb.set().programs.back().name].push_back({name, to, first});
  }
  // After a run of the program.
  void collect(Runner& runner, const std::string& program) {
    std::map<std::string, std::int64_t> made;
    for (const Taken& t : taken_[program]) {
      const TensorView v = runner.view(t.buffer);
      Joined& all = joined_[t.name];
      const auto frame = to_size(v.elements() / v.shape[0]);
      const auto at = to_size(all.frames + t.first) * frame;
      all.shape = v.shape;
      all.values.resize(std::max(all.values.size(), at + to_size(v.elements())));
      std::copy_n(v.as<float>(), v.elements(),
                  all.values.begin() + static_cast<std::ptrdiff_t>(at));
      made[t.name] = std::max(made[t.name], t.first + v.shape[0]);
    }
    for (const auto& [name, frames] : made) joined_[name].frames += frames;
  }
  void clear() { joined_.clear(); }
  // [C, T, H, W] of everything collected.
  void add_results(const std::string& prefix, std::vector<GoldenTensor>& results) const;

 private:
  struct Taken {
    std::string name;
    Buffer buffer;
    std::int64_t first;
  };
  struct Joined {
    Shape shape;
    std::int64_t frames = 0;
    std::vector<float> values;
  };
  std::map<std::string, std::vector<Taken>> taken_;
  std::map<std::string, Joined> joined_;
};

// [T, H, W, C] as [C, T, H, W].
GoldenTensor channels_first(std::string name, std::span<const float> values, std::int64_t frames,
                            std::int64_t height, std::int64_t width, std::int64_t channels) {
  GoldenTensor t = golden_tensor(std::move(name), DType::f32, {channels, frames, height, width});
  float* to = t.view().as<float>();
  const std::int64_t positions = frames * height * width;
  for (std::int64_t p = 0; p < positions; ++p) {
    for (std::int64_t c = 0; c < channels; ++c) {
      to[c * positions + p] = values[to_size(p * channels + c)];
    }
  }
  return t;
}

std::vector<float> channels_last(const GoldenTensor& t) {
  const std::int64_t channels = t.shape[0], positions = t.shape.elements() / channels;
  std::vector<float> v(to_size(t.shape.elements()));
  const float* from = t.view().as<float>();
  for (std::int64_t c = 0; c < channels; ++c) {
    for (std::int64_t p = 0; p < positions; ++p) {
      v[to_size(p * channels + c)] = from[c * positions + p];
    }
  }
  return v;
}

void VaeTaps::add_results(const std::string& prefix, std::vector<GoldenTensor>& results) const {
  for (const auto& [name, j] : joined_) {
    results.push_back(
        channels_first(prefix + name, j.values, j.frames, j.shape[1], j.shape[2], j.shape[3]));
  }
}

// A recorded, planned and loaded VAE for chunks of clips.
class VaeRun {
 public:
  VaeRun(const GoldenFile& file, const VerifyOptions& options, const VaeCase& c) : case_(c) {
    set_.backend = verify_backend(options);
    const wan_vae::Job job = {.config = c.model,
                              .encode = true,
                              .decode = true,
                              .height = c.rows(),
                              .width = c.columns(),
                              .dtype = options.dtype,
                              .policy = vae_policy(options.policy)};
    const auto stored = [&](const wan_vae::Network& net) {
      return wan_vae::stored_units(net, file.checkpoint(), wan_vae::Dialect::official);
    };
    vae_ = std::make_unique<wan_vae::Vae>(set_, job, stored(wan_vae::encoder(c.model)),
                                          stored(wan_vae::decoder(c.model)), &taps_);
    plan_ = plan_memory(set_);
    runner_ = std::make_unique<Runner>(set_, plan_);
    if (options.device == Device::cpu) ops::warm_up_blas(runner_->compute_threads());
    runner_->run("load");
  }

  // Normalised latents of a video [3, n, H, W], as a result.
  GoldenTensor encode(const GoldenTensor& video, std::string name) {
    const std::int64_t frames = wan_vae::latent_frames(video.shape[1]);
    const std::vector<float> pixels = channels_last(video);
    GoldenTensor z = golden_tensor(std::move(name), DType::f32, case_.latent(frames));
    const std::span<float> to(z.view().as<float>(), to_size(z.shape.elements()));
    std::size_t at = 0;
    for (std::int64_t f = 0; f < frames; ++f) {
      const wan_vae::ChunkIo& io = f == 0 ? vae_->io().encode_start : vae_->io().encode_next;
      const TensorView v = runner_->view(io.pixels);
      const auto count = to_size(v.elements());
      std::copy_n(pixels.begin() + static_cast<std::ptrdiff_t>(at), count, v.as<float>());
      at += count;
      run(io);
      const TensorView mu = runner_->view(io.latent);
      case_.latent_frames(frames).put({mu.as<float>(), to_size(mu.elements())}, f, to);
    }
    return z;
  }

  GoldenTensor decode(const GoldenTensor& z, std::string name) {
    const std::int64_t frames = z.shape[1];
    const std::vector<float> latents = z.floats();
    std::vector<float> pixels;
    for (std::int64_t f = 0; f < frames; ++f) {
      const wan_vae::ChunkIo& io = f == 0 ? vae_->io().decode_start : vae_->io().decode_next;
      const TensorView to = runner_->view(io.latent);
      case_.latent_frames(frames).take(latents, f, {to.as<float>(), to_size(to.elements())});
      run(io);
      const TensorView v = runner_->view(io.pixels);
      pixels.insert(pixels.end(), v.as<float>(), v.as<float>() + v.elements());
    }
    return channels_first(std::move(name), pixels, wan_vae::pixel_frames(frames), case_.height,
                          case_.width, 3);
  }

  VaeTaps& taps() { return taps_; }

 private:
  void run(const wan_vae::ChunkIo& io) {
    runner_->run(io.program);
    taps_.collect(*runner_, io.program);
  }

  const VaeCase& case_;
  ProgramSet set_;
  VaeTaps taps_;
  std::unique_ptr<wan_vae::Vae> vae_;
  MemoryPlan plan_;
  std::unique_ptr<Runner> runner_;
};

std::vector<float> read_floats(Runner& runner, Buffer b) {
  const TensorView v = runner.view(b);
  std::vector<float> values(to_size(v.elements()));
  runner.read(b, std::as_writable_bytes(std::span(values)));
  return values;
}

// A convolution's gradient from rows of taps to the order of files, [N, C, taps].
GoldenTensor gradient_result(const wan_vae::UnitGradient& g, std::span<const float> values) {
  GoldenTensor t = golden_tensor("grad." + g.name, DType::f32, g.shape);
  float* to = t.view().as<float>();
  if (g.taps == 0) {
    std::ranges::copy(values, to);
    return t;
  }
  const std::int64_t outputs = g.shape[0], channels = g.shape[1];
  const std::int64_t row = std::ssize(values) / outputs;
  for (std::int64_t n = 0; n < outputs; ++n) {
    for (std::int64_t c = 0; c < channels; ++c) {
      for (std::int64_t i = 0; i < g.taps; ++i) {
        to[(n * channels + c) * g.taps + i] = values[to_size(n * row + i * channels + c)];
      }
    }
  }
  return t;
}

// The decoder's gradients over a whole clip.
void add_gradients(const GoldenFile& file, const VerifyOptions& options, const VaeCase& c,
                   std::vector<GoldenTensor>& results) {
  const std::int64_t frames = wan_vae::latent_frames(c.grad_frames);
  ProgramSet set;
  set.backend = verify_backend(options);
  const wan_vae::Gradients gradients(
      set,
      {.config = c.model,
       .frames = frames,
       .height = c.rows(),
       .width = c.columns(),
       .dtype = options.dtype,
       .checkpointing = options.policy.activations != Activations::kept},
      wan_vae::stored_units(wan_vae::decoder(c.model), file.checkpoint(),
                            wan_vae::Dialect::official));
  const wan_vae::GradientIo& io = gradients.io();
  const MemoryPlan plan = plan_memory(set);
  Runner runner(set, plan);
  if (options.device == Device::cpu) ops::warm_up_blas(runner.compute_threads());
  runner.run("load");
  const std::vector<float> z = file.load("in.grad.z", DType::f32, c.latent(frames)).floats();
  const wan_vae::LatentFrame layout = c.latent_frames(frames);
  const auto one = to_size(layout.positions * layout.channels);
  float* input = runner.view(io.input).as<float>();
  for (std::int64_t f = 0; f < frames; ++f) {
    layout.take(z, f, {input + to_size(f) * one, one});
  }
  const std::vector<float> target =
      channels_last(file.load("in.grad.target", DType::f32, c.video(c.grad_frames)));
  std::ranges::copy(target, runner.view(io.target).as<float>());
  runner.run("grad");

  const auto loss = static_cast<float>(runner.view(io.loss).as<double>()[0]);
  results.push_back(golden_tensor("out.grad.loss", {}, std::span(&loss, 1)));
  for (const wan_vae::UnitGradient& g : io.gradients) {
    results.push_back(gradient_result(g, read_floats(runner, g.gradient)));
  }
  // The input was z std + mean.
  GoldenTensor dz = channels_first("grad.in.grad.z", read_floats(runner, io.dinput), frames,
                                   c.rows(), c.columns(), c.model.z_dim);
  const std::int64_t channel = dz.shape.elements() / c.model.z_dim;
  for (std::int64_t i = 0; i < dz.shape.elements(); ++i) {
    dz.view().as<float>()[i] *= c.std[to_size(i / channel)];
  }
  results.push_back(std::move(dz));
}

}  // namespace

std::vector<GoldenTensor> recompute_vae(const GoldenFile& file, const VerifyOptions& options) {
  const VaeCase c = read_case(file);
  VaeRun run(file, options, c);
  std::vector<GoldenTensor> results;
  for (const std::int64_t n : c.frames) {
    const std::string k = fmt::format("frames{}", n);
    run.taps().clear();
    const GoldenTensor video = file.load("in." + k + ".video", DType::f32, c.video(n));
    GoldenTensor mu = run.encode(video, "out." + k + ".mu");
    const GoldenTensor z =
        file.load("in." + k + ".z", DType::f32, c.latent(wan_vae::latent_frames(n)));
    results.push_back(run.decode(z, "out." + k + ".decoded"));
    if (n == c.stage_frames) run.taps().add_results("mid." + k + ".", results);
    if (n == c.roundtrip_frames) results.push_back(run.decode(mu, "out." + k + ".roundtrip"));
    results.push_back(std::move(mu));
  }
  if (c.grad_frames > 0) add_gradients(file, options, c, results);
  return results;
}

}  // namespace ballast
