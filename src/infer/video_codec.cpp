#include "infer/video_codec.h"

#include <algorithm>
#include <cmath>
#include <future>
#include <tuple>

#include "core/error.h"
#include "core/start_thread.h"
#include "core/to_size.h"
#include "io/weight_file_parts.h"
#include "memory/gpu.h"
#include "memory/machine.h"
#include "ops/linear/sgemm.h"

namespace ballast::infer {
namespace {

wan_vae::Recognised recognised(const WeightFiles& checkpoint) {
  if (const auto found = wan_vae::recognise(checkpoint)) return *found;
  fail(ErrorCode::input,
       fmt::format("{} holds no Wan2.1 or Wan2.2 VAE: it has neither "
                   "decoder.middle.0.residual.0.gamma nor decoder.mid_block.resnets.0.norm1.gamma",
                   checkpoint.path()),
       {{"ballast inspect " + checkpoint.path(), "lists the tensors it has"}});
}

constexpr const char* kChunkLine = "frames of a chunk";

Bytes chunk_bytes(const wan_vae::Job& job) {
  const auto values = chunk_values(job.config, job.height, job.width, job.long_clips);
  return Bytes{sizeof(float) * static_cast<std::uint64_t>(values)};
}

std::optional<fit::Change> smaller_image(const fit::Request& request) {
  constexpr int kTries = 5;  // down to a quarter of the sides
  const auto smaller = [](std::int64_t cells) {
    return std::min(cells, std::max<std::int64_t>(2, cells * 3 / 8 * 2));  // an even number
  };
  const wan_vae::Job& job = wan_vae::job_of(request).vae;
  using Cells = std::pair<std::int64_t, std::int64_t>;  // height and width
  std::vector<Cells> sizes;
  for (Cells now = {job.height, job.width}; std::ssize(sizes) < kTries; sizes.push_back(now)) {
    const Cells next = {smaller(now.first), smaller(now.second)};
    if (next == now) break;
    now = next;
  }
  if (sizes.empty()) return std::nullopt;
  std::ranges::reverse(sizes);
  const auto size = [&](std::int64_t k) {  // the smallest is the first
    return sizes[to_size(std::max<std::int64_t>(k, 1) - 1)];
  };
  const auto change = [&](std::int64_t k) -> std::function<void(fit::Request&)> {
    return [cells = size(k)](fit::Request& r) {
      if (const auto* vae = r.job.get_if<wan_vae::FitJob>()) {
        resize_part(r, cells.first, cells.second, vae->vae.long_clips);
      }
    };
  };
  const std::int64_t k = fit::largest_fitting(std::ssize(sizes), request, change);
  if (k == 0) return std::nullopt;
  const std::int64_t side = job.config.pixels_per_latent();
  const auto [height, width] = size(k);
  return fit::Change{.text = fmt::format("{} x {} pixels", width * side, height * side),
                     .apply = change(k)};
}

}  // namespace

void resize_part(fit::Request& request, std::int64_t height, std::int64_t width, bool long_clips) {
  wan_vae::Job& job = wan_vae::job_of(request).vae;
  job.height = height;
  job.width = width;
  job.long_clips = long_clips;
  replace_line(request.other_lines, {kChunkLine, chunk_bytes(job), {}});
}

std::vector<fit::Change> smaller_images(std::span<const fit::Request> refused) {
  for (const fit::Request& r : refused) {
    if (r.policy || !r.job.get_if<wan_vae::FitJob>()) continue;
    if (auto change = smaller_image(r)) return {std::move(*change)};
  }
  return {};
}

void require_latents_of(const wan::Config& model, const wan_vae::Config& vae,
                        const std::string& path) {
  if (vae.z_dim == model.out_dim && vae.pixels_per_latent() == model.spatial_stride) return;
  fail(ErrorCode::input,
       fmt::format("{} decodes latents of {} channels, {} pixels to a cell; those of {} have {}, "
                   "{} pixels",
                   path, vae.z_dim, vae.pixels_per_latent(), model.name, model.out_dim,
                   model.spatial_stride),
       {{fmt::format("name the VAE of Wan2.{}", model.spatial_stride == 16 ? 2 : 1),
         "TI2V-5B has Wan2.2's, all other models have Wan2.1's"}});
}

std::int64_t chunk_values(const wan_vae::Config& c, std::int64_t height, std::int64_t width,
                          bool long_clips) {
  const std::int64_t side = c.pixels_per_latent();
  return (long_clips ? 4 : 1) * height * side * width * side * 3;
}

VideoCodec::VideoCodec(const std::string& path, wan_vae::Part part,
                       const VideoCodecOptions& options)
    : options_(options),
      part_(part),
      checkpoint_(open_part(path, ModelPart::vae)),
      found_(recognised(checkpoint_)) {
  if (options_.dtype != DType::f32 && options_.dtype != DType::bf16) {
    fail(ErrorCode::usage, "the VAE computes in f32 or bf16, not {}", options_.dtype);
  }
  if (options_.device == Device::cuda) {
    const GpuInfo gpu = open_gpu();
    profile_ = nearest_profile(gpu.name, gpu.sm);
    backend_ = {.device = Device::cuda, .sm = gpu.sm};
  } else {
    backend_ = {.threads = options_.threads > 0 ? options_.threads : usable_cpus(read_machine())};
  }
}

CommandPart VideoCodec::part(std::int64_t height, std::int64_t width, bool long_clips) const {
  const bool encode = part_ == wan_vae::Part::encoder;
  const auto stored = [&](const wan_vae::Network& net) {
    return stored_units(net, checkpoint_, found_.dialect);
  };
  using Units = std::vector<wan_vae::StoredUnit>;
  const wan_vae::Job vae = {.config = found_.config,
                            .encode = encode,
                            .decode = !encode,
                            .height = height,
                            .width = width,
                            .dtype = options_.dtype,
                            .long_clips = long_clips};
  wan_vae::FitJob job(vae, encode ? stored(wan_vae::encoder(found_.config)) : Units(),
                      encode ? Units() : stored(wan_vae::decoder(found_.config)));
  job.shares_ram = backend_.device == Device::cpu;
  fit::Request r;
  r.backend = backend_;
  r.profile = profile_;
  r.budget = fit::with_limits(options_.budget);
  r.other_lines = options_.other_lines;
  r.other_lines.push_back({.name = kChunkLine,
                           .bytes = chunk_bytes(vae),
                           .reason = "with the caller while another chunk computes"});
  if (options_.policy) r.policy = job.choose(*options_.policy);
  r.job = std::move(job);
  const std::int64_t side = found_.config.pixels_per_latent();
  PlanTitle title = title_of(r, found_.config.name, encode ? "encoding" : "decoding",
                             fmt::format("{} of {} x {} pixels", long_clips ? "clips" : "images",
                                         width * side, height * side));
  return {std::move(r), std::move(title)};
}

fit::PlannedRun VideoCodec::plan(std::int64_t height, std::int64_t width, bool long_clips) const {
  return require_plan(part(height, width, long_clips), smaller_images);
}

void VideoCodec::prepare(std::int64_t height, std::int64_t width, bool long_clips) {
  if (vae_ && vae_->job().height == height && vae_->job().width == width &&
      (vae_->job().long_clips || !long_clips)) {
    return;
  }
  const fit::PlannedRun planned = plan(height, width, long_clips);
  runner_.reset();
  vae_.reset();
  set_ = {};
  set_.backend = backend_;
  const auto& chosen = planned.job.as<wan_vae::FitJob>();
  wan_vae::Job job = chosen.vae;
  job.policy = wan_vae::policy_of(planned);
  vae_ = std::make_unique<wan_vae::Vae>(set_, std::move(job), chosen.encoder, chosen.decoder);
  plan_ = plan_memory(set_);
  runner_ = std::make_unique<Runner>(set_, plan_);
  if (backend_.device == Device::cpu) ops::warm_up_blas(runner_->compute_threads());
  runner_->run("load");
  frames_.resize(to_size(chunk_values(found_.config, height, width, long_clips)));
}

VideoDecoder::VideoDecoder(const std::string& path, const VideoCodecOptions& options)
    : VideoCodec(path, wan_vae::Part::decoder, options) {}

void VideoDecoder::decode(std::span<const float> latent, std::int64_t frames, std::int64_t height,
                          std::int64_t width, const Sink& sink) {
  const wan_vae::Config& c = config();
  if (frames < 1 || height < 1 || width < 1 ||
      std::ssize(latent) != c.z_dim * frames * height * width) {
    fail(ErrorCode::input, "a latent of {} values; {} channels of {} x {} x {} are {}",
         latent.size(), c.z_dim, frames, height, width, c.z_dim * frames * height * width);
  }
  prepare(height, width, frames > 1);
  infer::decode({.runner = *runner_, .vae = *vae_, .chunk = frames_, .clamp = options_.clamp},
                latent, frames, [&](const Frames& f) {
                  sink(f);
                  return true;
                });
}

void decode(const RecordedDecoder& decoder, std::span<const float> latent, std::int64_t frames,
            const std::function<bool(const DecodedFrames&)>& sink) {
  const wan_vae::Job& job = decoder.vae.job();
  Runner& runner = decoder.runner;
  const wan_vae::LatentFrame layout = {.statistics = latent_statistics(job.config),
                                       .channels = job.config.z_dim,
                                       .frames = frames,
                                       .positions = job.height * job.width};
  const auto chunk = [&](std::int64_t f) -> const wan_vae::ChunkIo& {
    return f == 0 ? decoder.vae.io().decode_start : decoder.vae.io().decode_next;
  };
  const auto run = [&](std::int64_t f) {
    const TensorView z = runner.view(chunk(f).latent);
    layout.take(latent, f, {z.as<float>(), to_size(z.elements())});
    runner.run(chunk(f).program);
  };
  std::int64_t made = 0;
  run(0);
  for (std::int64_t f = 0; f < frames; ++f) {
    const wan_vae::ChunkIo& io = chunk(f);
    const TensorView v = runner.view(io.pixels);
    const std::span<float> pixels = decoder.chunk.first(to_size(v.elements()));
    const float* from = v.as<float>();
    const float low = decoder.clamp ? -1.0f : -INFINITY, high = -low;
    for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = std::clamp(from[i], low, high);
    std::future<void> next;  // its end waits for what it began
    if (f + 1 < frames) next = start_task("decoding frames", [&run, f] { return run(f + 1); });
    const bool go_on = sink({.pixels = pixels,
                             .first = made,
                             .count = io.frames,
                             .height = v.shape[1],
                             .width = v.shape[2]});
    made += io.frames;
    if (next.valid()) next.get();
    if (!go_on) return;
  }
}

VideoEncoder::VideoEncoder(const std::string& path, const VideoCodecOptions& options)
    : VideoCodec(path, wan_vae::Part::encoder, options) {}

std::vector<float> VideoEncoder::encode(std::int64_t frames, std::int64_t height,
                                        std::int64_t width, const Source& source) {
  const wan_vae::Config& c = config();
  const std::int64_t latent_frames = wan_vae::latent_frames(frames);
  const std::int64_t side = c.pixels_per_latent();
  if (height < side || width < side || height % side != 0 || width % side != 0) {
    const auto down = [&](std::int64_t n) { return std::max(side, n / side * side); };
    fail(ErrorCode::input,
         fmt::format("{} x {} pixels: {} takes multiples of {}", height, width, c.name, side),
         {{fmt::format("scale or crop to {} x {}", down(height), down(width)),
           "the nearest below"}});
  }
  prepare(height / side, width / side, latent_frames > 1);
  const wan_vae::LatentFrame layout = {.statistics = latent_statistics(c),
                                       .channels = c.z_dim,
                                       .frames = latent_frames,
                                       .positions = height / side * (width / side)};
  std::vector<float> latent(to_size(c.z_dim * latent_frames * layout.positions));
  const auto chunk = [&](std::int64_t f) -> const wan_vae::ChunkIo& {
    return f == 0 ? vae_->io().encode_start : vae_->io().encode_next;
  };
  std::int64_t read = 0;
  const auto fetch = [&](std::int64_t f) {
    const auto count = to_size(chunk(f).frames * height * width * 3);
    source(read, chunk(f).frames, std::span(frames_.data(), count));
    read += chunk(f).frames;
  };
  fetch(0);
  for (std::int64_t f = 0; f < latent_frames; ++f) {
    const wan_vae::ChunkIo& io = chunk(f);
    const TensorView v = runner_->view(io.pixels);
    std::copy_n(frames_.data(), v.elements(), v.as<float>());
    std::future<void> now = start_task("encoding frames", [&] { runner_->run(io.program); });
    if (f + 1 < latent_frames) fetch(f + 1);
    now.get();
    const TensorView mu = runner_->view(io.latent);
    layout.put({mu.as<float>(), to_size(mu.elements())}, f, latent);
  }
  return latent;
}

}  // namespace ballast::infer
