#include "models/wan_vae/vae.h"

#include <algorithm>

#include "core/error.h"
#include "ops/copy.h"
#include "ops/fold_blocks.h"

namespace ballast::wan_vae {
namespace {

constexpr std::int64_t kNextFrames = 4;

}  // namespace

Vae::Vae(ProgramSet& set, Job job, std::vector<StoredUnit> encoder, std::vector<StoredUnit> decoder,
         Taps* taps)
    : set_(set),
      job_(std::move(job)),
      taps_(taps),
      encoder_net_(wan_vae::encoder(job_.config)),
      decoder_net_(wan_vae::decoder(job_.config)),
      encoder_caches_(job_.policy.hosted_histories, true),
      decoder_caches_(job_.policy.hosted_histories, false) {
  validate(job_.config);
  check(job_.height > 0 && job_.width > 0, "latents of {} x {}", job_.height, job_.width);
  {
    ProgramBuilder load(set_, "load");
    const WeightOptions options = {
        .dtype = job_.dtype, .streamed = job_.policy.streamed_units, .ahead = job_.policy.ahead};
    const std::uint64_t largest = std::max(Weights::largest(encoder), Weights::largest(decoder));
    if (job_.encode) encoder_.emplace(load, encoder_net_, std::move(encoder), options);
    if (job_.decode) decoder_.emplace(load, decoder_net_, std::move(decoder), options);
    StagingRing ring(load, largest);
    if (encoder_) encoder_->load(load, ring);
    if (decoder_) decoder_->load(load, ring);
    if (decoder_) io_.decode_start = declare(load, "decode.start", 1);
    if (decoder_ && job_.long_clips) io_.decode_next = declare(load, "decode.next", kNextFrames);
    if (encoder_) io_.encode_start = declare(load, "encode.start", 1);
    if (encoder_ && job_.long_clips) io_.encode_next = declare(load, "encode.next", kNextFrames);
  }
  if (decoder_) record_decode(io_.decode_start, true);
  if (decoder_ && job_.long_clips) record_decode(io_.decode_next, false);
  if (encoder_) record_encode(io_.encode_start, true);
  if (encoder_ && job_.long_clips) record_encode(io_.encode_next, false);
}

ChunkIo Vae::declare(ProgramBuilder& pb, const std::string& name, std::int64_t frames) {
  const std::int64_t side = job_.config.pixels_per_latent();
  const auto scope = pb.scope(name);
  const bool decodes = name.starts_with("decode");
  return {.program = name,
          .frames = frames,
          .latent = pb.persistent("latent", {1, job_.height, job_.width, job_.config.z_dim},
                                  DType::f32, decodes ? Role::input : Role::output, Tier::host),
          .pixels = pb.persistent("pixels", {frames, job_.height * side, job_.width * side, 3},
                                  DType::f32, decodes ? Role::output : Role::input, Tier::host)};
}

void Vae::record_decode(ChunkIo& io, bool start) {
  ProgramBuilder pb(set_, io.program);
  decoder_->begin_program();
  const Buffer z = pb.temp("latent", pb.shape(io.latent), DType::f32);
  ops::copy(pb, io.latent, z, Lane::upload);
  ForwardPass pass(pb,
                   {.net = decoder_net_,
                    .weights = *decoder_,
                    .dtype = job_.dtype,
                    .caches = job_.long_clips ? &decoder_caches_ : nullptr,
                    .taps = taps_,
                    .slices = job_.policy.slices},
                   start);
  pass.run(ops::cast(pb, z, job_.dtype), [&](Buffer y, std::int64_t first) {
    Buffer pixels = y;
    if (job_.config.folded()) {
      const Shape s = pb.shape(y);
      pixels = pb.temp("pixels", {s[0], 2 * s[1], 2 * s[2], 3}, DType::f32);
      ops::unfold_blocks_into(pb, y, pixels, {.block = kPixelFold});
    }
    ops::copy(pb, pixels, pb.rows(io.pixels, first, pb.shape(pixels)[0]), Lane::download);
  });
}

void Vae::record_encode(ChunkIo& io, bool start) {
  ProgramBuilder pb(set_, io.program);
  encoder_->begin_program();
  const Shape s = pb.shape(io.pixels);
  const Buffer pixels = pb.temp("pixels", s, DType::f32);
  ops::copy(pb, io.pixels, pixels, Lane::upload);
  Buffer x = pixels;
  if (job_.config.folded()) {
    x = pb.temp("folded", {s[0], s[1] / 2, s[2] / 2, 12}, job_.dtype);
    ops::fold_blocks_into(pb, pixels, x, {.block = kPixelFold});
  } else {
    x = ops::cast(pb, x, job_.dtype);
  }
  ForwardPass pass(pb,
                   {.net = encoder_net_,
                    .weights = *encoder_,
                    .dtype = job_.dtype,
                    .caches = job_.long_clips ? &encoder_caches_ : nullptr,
                    .taps = taps_},
                   start);
  pass.run(x, [&](Buffer y, std::int64_t) {  // means, then log-variances
    const Buffer mean = pb.columns(y, 0, job_.config.z_dim);
    ops::copy(pb, mean, io.latent, Lane::download);
  });
}

// mu = latent * std + mean
void LatentFrame::take(std::span<const float> latents, std::int64_t frame,
                       std::span<float> to) const {
  for (std::int64_t z = 0; z < channels; ++z) {
    const auto c = static_cast<std::size_t>(z);
    const float mean = statistics.mean.empty() ? 0 : statistics.mean[c];
    const float std = statistics.std.empty() ? 1 : statistics.std[c];
    const float* from = latents.data() + at(z, frame);
    for (std::int64_t p = 0; p < positions; ++p) {
      to[static_cast<std::size_t>(p * channels + z)] = from[p] * std + mean;
    }
  }
}

// latent = (mu - mean) / std
void LatentFrame::put(std::span<const float> from, std::int64_t frame,
                      std::span<float> latents) const {
  for (std::int64_t z = 0; z < channels; ++z) {
    const auto c = static_cast<std::size_t>(z);
    const float mean = statistics.mean.empty() ? 0 : statistics.mean[c];
    const float std = statistics.std.empty() ? 1 : statistics.std[c];
    float* to = latents.data() + at(z, frame);
    for (std::int64_t p = 0; p < positions; ++p) {
      to[p] = (from[static_cast<std::size_t>(p * channels + z)] - mean) / std;
    }
  }
}

}  // namespace ballast::wan_vae
