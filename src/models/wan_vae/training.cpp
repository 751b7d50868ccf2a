#include "models/wan_vae/training.h"

#include <algorithm>

#include "core/error.h"
#include "core/to_size.h"
#include "ops/copy.h"
#include "ops/fill.h"
#include "ops/gaussian_latent.h"
#include "ops/noise.h"

namespace ballast::wan_vae {
namespace {

constexpr std::int64_t kAligned = 64;  // elements: where tensors begin in what they share

std::int64_t aligned(std::int64_t n) { return (n + kAligned - 1) / kAligned * kAligned; }

}  // namespace

Training::Training(ProgramSet& set, TrainingJob job, std::vector<StoredUnit> encoder,
                   std::vector<StoredUnit> decoder)
    : job_(std::move(job)),
      encoder_net_(wan_vae::encoder(job_.config)),
      decoder_net_(wan_vae::decoder(job_.config)) {
  validate(job_.config);
  check(job_.dtype == DType::f32 || job_.dtype == DType::bf16, "computing in {}", job_.dtype);
  load(set, std::move(encoder), std::move(decoder));
  record_update(set);
  for (const ClipIo& io : io_.clips) record_clip(set, io);
  for (const ClipIo& io : io_.clips) record_measure(set, io);
}

void Training::load(ProgramSet& set, std::vector<StoredUnit> encoder,
                    std::vector<StoredUnit> decoder) {
  ProgramBuilder load(set, "load");
  const std::uint64_t largest = std::max(Weights::largest(encoder), Weights::largest(decoder));
  const WeightOptions options = {.dtype = job_.dtype};
  encoder_.emplace(load, encoder_net_, std::move(encoder), options);
  decoder_.emplace(load, decoder_net_, std::move(decoder), options);
  StagingRing ring(load, largest);
  encoder_->load(load, ring);
  decoder_->load(load, ring);
  declare_gradients(load);
  losses_ = load.persistent("loss_sums", {2}, DType::f64, Role::output);
  io_.losses = load.persistent("losses", {2}, DType::f64, Role::output, Tier::host);
  io_.grad_norm = load.persistent("grad_norm", {1}, DType::f32, Role::output, Tier::host);
  for (std::size_t k = 0; k < job_.clips.size(); ++k) io_.clips.push_back(declare_clip(load, k));
}

// One buffer for all: zeros and the norm take one instruction each.
void Training::declare_gradients(ProgramBuilder& pb) {
  struct Place {
    const Weights* weights;
    std::size_t unit;
    UnitTensor tensor;
    std::int64_t at;
  };
  std::vector<Place> places;
  std::int64_t total = 0;
  for (const Weights* w : {&*encoder_, &*decoder_}) {
    if (w == &*encoder_ && !job_.train_encoder) continue;
    for (std::size_t u = 0; u < w->units(); ++u) {
      for (const UnitTensor& t : tensors_of(w->unit(u))) {
        places.push_back({w, u, t, total});
        total += aligned(pb.shape(w->persistent(u)[to_size(t.slot)]).elements());
      }
    }
  }
  gradients_ = pb.persistent("gradients", {total}, DType::f32, Role::gradient);
  encoder_grads_.resize(encoder_->units());
  decoder_grads_.resize(decoder_->units());
  for (const Place& p : places) {
    const auto slot = to_size(p.tensor.slot);
    const Buffer weight = p.weights->persistent(p.unit)[slot];
    const Buffer gradient =
        pb.view(gradients_, static_cast<std::uint64_t>(p.at) * 4, DType::f32, pb.shape(weight));
    (p.weights == &*encoder_ ? encoder_grads_ : decoder_grads_)[p.unit][slot] = gradient;
    TrainedTensor& t = io_.trained.emplace_back();
    t.shape = p.tensor.shape;
    t.taps = p.tensor.taps;
    t.updated.name = p.tensor.name;
    t.updated.value = weight;
    t.updated.gradient = gradient;
    t.updated.decays = p.tensor.taps > 0;
    if (pb.dtype(weight) == DType::f32) continue;
    t.updated.narrow = weight;
    t.updated.value =
        pb.persistent(p.tensor.name + ".master", pb.shape(weight), DType::f32, Role::optimizer);
  }
}

ClipIo Training::declare_clip(ProgramBuilder& pb, std::size_t kind) {
  const LatentClip& size = job_.clips[kind];
  check(size.frames > 0 && size.height > 0 && size.width > 0, "latents of {} x {} x {}",
        size.frames, size.height, size.width);
  const std::int64_t side = job_.config.pixels_per_latent();
  const Shape pixels = {pixel_frames(size.frames), size.height * side, size.width * side, 3};
  const auto scope = pb.scope(fmt::format("clip.{}", kind));
  const auto host = [&](const char* name, const Shape& shape, Role role) {
    return pb.persistent(name, shape, DType::f32, role, Tier::host);
  };
  return {.size = size,
          .program = fmt::format("step.{}", kind),
          .measure = fmt::format("measure.{}", kind),
          .pixels = host("pixels", pixels, Role::input),
          .next = host("next", pixels, Role::input),
          .weight = host("weight", {1}, Role::input),
          .means = host("means", {size.frames, size.height, size.width, job_.config.z_dim},
                        Role::output)};
}

Buffer Training::enter(ProgramBuilder& pb, const ClipIo& io) {
  const Buffer pixels = pb.temp("pixels", pb.shape(io.pixels), DType::f32);
  ops::copy(pb, io.pixels, pixels, Lane::upload);
  return pixels;
}

void Training::record_clip(ProgramSet& set, const ClipIo& io) {
  ProgramBuilder pb(set, io.program);
  encoder_->begin_program();
  decoder_->begin_program();
  const Buffer pixels = enter(pb, io), weight = pb.temp("weight", {1}, DType::f32);
  ops::copy(pb, io.weight, weight, Lane::upload);
  const auto pass = [&](const Network& net, Weights& weights, bool checkpointing) {
    return ClipPass(
        pb, {.net = net, .weights = weights, .dtype = job_.dtype, .checkpointing = checkpointing});
  };
  // Where nothing goes back through the encoder no input of its units is kept.
  ClipPass encode = pass(encoder_net_, *encoder_, job_.checkpointing || !job_.train_encoder),
           decode = pass(decoder_net_, *decoder_, job_.checkpointing);
  const Buffer moments = encode.forward(fold_pixels(pb, job_.config, pixels, job_.dtype));

  const Shape latent = {io.size.frames, io.size.height, io.size.width, job_.config.z_dim};
  const Buffer noise = pb.temp("noise", {latent.rows(), latent.back()}, DType::f32);
  ops::noise(pb, noise, ops::random_site("noise", "vae latent", 0));
  const double values = static_cast<double>(latent.elements());
  const ops::GaussianLatentBuffers gaussian = {
      .moments = as_rows(pb, moments), .noise = noise, .sample_weight = weight};
  const Buffer z =
      ops::gaussian_latent(pb, gaussian, 1.0 / values, pb.rows(losses_, 1, 1));  // [f h w, z]

  const Buffer made = decode.forward(ops::cast(pb, pb.reshape(z, latent), job_.dtype));
  const Buffer result = unfold_pixels(pb, job_.config, made);
  ops::flow_loss(pb,
                 {.pred = result,
                  .target = pixels,
                  .sample_weight = weight,
                  .loss = pb.rows(losses_, 0, 1),
                  .dpred = result},
                 {.rho = job_.reconstruction,
                  .weight = 1.0 / static_cast<double>(pb.shape(result).elements())});
  ops::copy(pb, losses_, io_.losses, Lane::download);

  const Buffer dmade = fold_pixels(pb, job_.config, result, DType::f32);
  const Buffer dlatent = decode.backward(dmade, &decoder_grads_, job_.train_encoder);
  if (!job_.train_encoder) return;
  const Buffer dz = ops::cast(pb, dlatent, DType::f32);
  const Buffer dmoments = ops::gaussian_latent_backward(pb, gaussian, job_.kl_weight / values,
                                                        as_rows(pb, dz));  // [f h w, 2 z]
  encode.backward(pb.reshape(dmoments, pb.shape(moments)), &encoder_grads_, false);
}

void Training::record_measure(ProgramSet& set, const ClipIo& io) {
  ProgramBuilder pb(set, io.measure);
  encoder_->begin_program();
  // Nothing goes back: no input of a unit is kept.
  ClipPass encode(
      pb, {.net = encoder_net_, .weights = *encoder_, .dtype = job_.dtype, .checkpointing = true});
  const Buffer moments = encode.forward(fold_pixels(pb, job_.config, enter(pb, io), job_.dtype));
  ops::copy(pb, pb.columns(moments, 0, job_.config.z_dim), io.means, Lane::download);
}

void Training::record_update(ProgramSet& set) {
  std::vector<UpdatedTensor> all;
  Buffer factor;
  {
    ProgramBuilder init(set, "init_state");
    factor = init.persistent("clip_factor", {1}, DType::f32, Role::output);
    for (TrainedTensor& t : io_.trained) {
      declare_states(init, job_.optimizer, t.updated);
      all.push_back(t.updated);
    }
    record_initial_state(init, all);
  }
  {
    ProgramBuilder restored(set, "after_restore");
    record_restored(restored, all);
  }
  {
    ProgramBuilder zero(set, "zero_gradients");
    ops::fill(zero, gradients_, 0);
    ops::fill(zero, losses_, 0);
  }
  {
    ProgramBuilder norm(set, "grad_norm");
    record_gradient_norm(norm, all, job_.max_grad_norm, factor, io_.grad_norm);
  }
  {
    ProgramBuilder values(set, kValueNorm);
    record_value_norm(values, all, factor, io_.grad_norm);
  }
  ProgramBuilder update(set, "update");
  ballast::record_update(update, all, factor, job_.optimizer);
}

}  // namespace ballast::wan_vae
