#include "models/wan_vae/gradients.h"

#include "core/error.h"
#include "core/to_size.h"
#include "ops/copy.h"
#include "ops/fill.h"
#include "ops/flow_loss.h"

namespace ballast::wan_vae {
Gradients::Gradients(ProgramSet& set, const GradientJob& job, std::vector<StoredUnit> stored)
    : job_(job), net_(job.part == Part::encoder ? encoder(job.config) : decoder(job.config)) {
  validate(job_.config);
  check(job_.frames > 0 && job_.height > 0 && job_.width > 0, "latents of {} x {} x {}",
        job_.frames, job_.height, job_.width);
  {
    ProgramBuilder load(set, "load");
    const std::uint64_t largest = Weights::largest(stored);
    weights_.emplace(load, net_, std::move(stored), WeightOptions{.dtype = job_.dtype});
    StagingRing ring(load, largest);
    weights_->load(load, ring);
    const std::int64_t side = job_.config.pixels_per_latent(), z = job_.config.z_dim;
    const Shape pixels = {pixel_frames(job_.frames), job_.height * side, job_.width * side, 3};
    const bool decodes = job_.part == Part::decoder;
    const Shape latents = {job_.frames, job_.height, job_.width, decodes ? z : 2 * z};
    const auto host = [&](const char* name, const Shape& shape, DType dtype, Role role) {
      return load.persistent(name, shape, dtype, role, Tier::host);
    };
    io_.input = host("input", decodes ? latents : pixels, DType::f32, Role::input);
    io_.target = host("target", decodes ? pixels : latents, DType::f32, Role::input);
    io_.result = host("result", decodes ? pixels : latents, DType::f32, Role::output);
    io_.dinput = host("dinput", decodes ? latents : pixels, DType::f32, Role::output);
    io_.loss = host("loss", {1}, DType::f64, Role::output);
    for (std::size_t u = 0; job_.weights && u < weights_->units(); ++u) {
      UnitBuffers& g = grads_.emplace_back();
      for (const UnitTensor& t : tensors_of(weights_->unit(u))) {
        const auto slot = to_size(t.slot);
        g[slot] = load.persistent(t.name + ".grad", load.shape(weights_->persistent(u)[slot]),
                                  DType::f32, Role::gradient);
        io_.gradients.push_back(
            {{t.name, g[slot]}, weights_->persistent(u)[slot], t.shape, t.taps});
      }
    }
  }
  record(set);
}

void Gradients::record(ProgramSet& set) {
  ProgramBuilder pb(set, "grad");
  weights_->begin_program();
  for (const UnitBuffers& g : grads_) {
    for (const Buffer b : g) {
      if (b) ops::fill(pb, b, 0);
    }
  }
  const bool decodes = job_.part == Part::decoder;
  const Buffer input = pb.temp("input", pb.shape(io_.input), DType::f32);
  ops::copy(pb, io_.input, input, Lane::upload);
  ClipPass pass(pb, {.net = net_,
                     .weights = *weights_,
                     .dtype = job_.dtype,
                     .checkpointing = job_.checkpointing});
  const Buffer x = pass.forward(decodes ? ops::cast(pb, input, job_.dtype)
                                        : fold_pixels(pb, job_.config, input, job_.dtype));
  const Buffer result = decodes ? unfold_pixels(pb, job_.config, x) : x;
  ops::copy(pb, result, io_.result, Lane::download);
  const Buffer target = pb.temp("target", pb.shape(io_.target), DType::f32);
  ops::copy(pb, io_.target, target, Lane::upload);
  const Buffer loss = pb.temp("loss", {1}, DType::f64);
  ops::fill(pb, loss, 0);
  const Buffer dresult = pb.temp("dresult", pb.shape(result), DType::f32);
  ops::flow_loss(pb, {.pred = result, .target = target, .loss = loss, .dpred = dresult},
                 {.weight = 1.0 / static_cast<double>(pb.shape(result).elements())});
  ops::copy(pb, loss, io_.loss, Lane::download);

  Buffer d = decodes ? fold_pixels(pb, job_.config, dresult, DType::f32) : dresult;
  d = pass.backward(d, job_.weights ? &grads_ : nullptr);
  ops::copy(pb, decodes ? d : unfold_pixels(pb, job_.config, d), io_.dinput, Lane::download);
}

}  // namespace ballast::wan_vae
