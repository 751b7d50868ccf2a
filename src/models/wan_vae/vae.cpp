#include "models/wan_vae/vae.h"

#include <algorithm>

#include "core/error.h"
#include "models/wan_vae/clip_pass.h"
#include "ops/copy.h"

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
    ProgramBuilder load(set_, job_.prefix + "load");
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
  return {.program = job_.prefix + name,
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
                    .slices = job_.policy.slices,
                    .bands = bands(kDecoderHalo)},
                   start);
  pass.decode(ops::cast(pb, z, job_.dtype), [&](Buffer y, std::int64_t first, std::int64_t row) {
    const Buffer pixels = unfold_pixels(pb, job_.config, y);
    const Shape made = pb.shape(pixels);
    const bool whole = made[1] == pb.shape(io.pixels)[1];
    const Buffer to =
        whole ? pb.rows(io.pixels, first, made[0])
              : rows_of_frame(pb, io.pixels, first, job_.config.pixel_fold() * row, made[1]);
    ops::copy(pb, pixels, to, Lane::download);
  });
}

std::vector<Band> Vae::bands(std::int64_t halo) const {
  return cut_bands(kGridPerLatent * job_.height, job_.policy.bands, halo);
}

// Rows of the pixels of a chunk on the device.
Buffer Vae::upload(ProgramBuilder& pb, Buffer pixels, std::int64_t first, std::int64_t rows) {
  Shape s = pb.shape(pixels);
  const bool whole = rows == s[1];
  s[1] = rows;
  const Buffer here = pb.temp("pixels", s, DType::f32);
  if (whole) {
    ops::copy(pb, pixels, here, Lane::upload);
    return here;
  }
  for (std::int64_t f = 0; f < s[0]; ++f) {
    ops::copy(pb, rows_of_frame(pb, pixels, f, first, rows), pb.rows(here, f, 1), Lane::upload);
  }
  return here;
}

void Vae::record_encode(ChunkIo& io, bool start) {
  ProgramBuilder pb(set_, io.program);
  encoder_->begin_program();
  const std::int64_t fold = job_.config.pixel_fold();
  const auto input = [&](std::int64_t first, std::int64_t rows) {
    const Buffer pixels = upload(pb, io.pixels, fold * first, fold * rows);
    return fold_pixels(pb, job_.config, pixels, job_.dtype);
  };
  ForwardPass pass(pb,
                   {.net = encoder_net_,
                    .weights = *encoder_,
                    .dtype = job_.dtype,
                    .caches = job_.long_clips ? &encoder_caches_ : nullptr,
                    .taps = taps_,
                    .bands = bands(kEncoderHalo)},
                   start);
  pass.encode(input, pb.shape(io.pixels)[1] / fold, [&](Buffer y, std::int64_t, std::int64_t) {
    const Buffer mean = pb.columns(y, 0, job_.config.z_dim);  // before log-variances
    ops::copy(pb, mean, io.latent, Lane::download);
  });
}

// mu = latent * std + mean
void LatentFrame::take(std::span<const float> latents, std::int64_t frame,
                       std::span<float> to) const {
  for (std::int64_t z = 0; z < channels; ++z) {
    const auto c = to_size(z);
    const float mean = statistics.mean.empty() ? 0 : statistics.mean[c];
    const float std = statistics.std.empty() ? 1 : statistics.std[c];
    const float* from = latents.data() + at(z, frame);
    for (std::int64_t p = 0; p < positions; ++p) {
      to[to_size(p * channels + z)] = from[p] * std + mean;
    }
  }
}

// latent = (mu - mean) / std
void LatentFrame::put(std::span<const float> from, std::int64_t frame,
                      std::span<float> latents) const {
  for (std::int64_t z = 0; z < channels; ++z) {
    const auto c = to_size(z);
    const float mean = statistics.mean.empty() ? 0 : statistics.mean[c];
    const float std = statistics.std.empty() ? 1 : statistics.std[c];
    float* to = latents.data() + at(z, frame);
    for (std::int64_t p = 0; p < positions; ++p) {
      to[p] = (from[to_size(p * channels + z)] - mean) / std;
    }
  }
}

}  // namespace ballast::wan_vae
