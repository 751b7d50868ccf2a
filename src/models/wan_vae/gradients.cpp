#include "models/wan_vae/gradients.h"

#include "core/error.h"
#include "ops/copy.h"
#include "ops/fill.h"
#include "ops/flow_loss.h"
#include "ops/fold_blocks.h"

namespace ballast::wan_vae {
namespace {

bool is_up(const Unit& u) { return u.kind == UnitKind::up_2d || u.kind == UnitKind::up_3d; }

}  // namespace

Gradients::Gradients(ProgramSet& set, const GradientJob& job, std::vector<StoredUnit> stored)
    : job_(job), net_(job.part == Part::encoder ? encoder(job.config) : decoder(job.config)) {
  validate(job_.config);
  check(job_.frames > 0 && job_.height > 0 && job_.width > 0, "latents of {} x {} x {}",
        job_.frames, job_.height, job_.width);
  std::size_t unit = 0;
  for (const Stage& s : net_) {
    first_unit_.push_back(unit);
    unit += s.units.size();
  }
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
        const auto slot = static_cast<std::size_t>(t.slot);
        g[slot] = load.persistent(t.name + ".grad", load.shape(weights_->home(u)[slot]), DType::f32,
                                  Role::gradient);
        io_.gradients.push_back({t.name, g[slot], weights_->home(u)[slot], t.shape, t.taps});
      }
    }
  }
  record(set);
}

Buffer Gradients::stage_forward(ProgramBuilder& pb, std::size_t s, Buffer x,
                                std::vector<Buffer>* inputs) {
  UnitForward forward(pb, job_.dtype, nullptr);
  const Stage& stage = net_[s];
  const Buffer input = x;
  for (std::size_t i = 0; i < stage.units.size(); ++i) {
    const Unit& u = stage.units[i];
    if (inputs) inputs->push_back(x);
    const UnitBuffers& w = weights_->use(pb, first_unit_[s] + i);
    if (!is_up(u)) {
      x = forward.run(u, w, x, true, !inputs && !(x == input));
      continue;
    }
    const auto scope = pb.scope(u.name);
    const bool faster = u.kind == UnitKind::up_3d;
    x = forward.space_up(u, w, faster ? forward.time_up(u, w, x, true) : x);
    for (std::int64_t f = 0; stage.shortcut && f < pb.shape(x)[0]; ++f) {
      forward.unfold_shortcut(pb.rows(input, faster ? (f + 1) / 2 : f, 1), pb.rows(x, f, 1));
    }
  }
  if (stage.shortcut && !is_up(stage.units.back())) forward.fold_shortcut(input, x, true);
  return x;
}

Buffer Gradients::stage_backward(ProgramBuilder& pb, std::size_t s, Buffer x,
                                 const std::vector<Buffer>& inputs, Buffer dy) {
  UnitBackward backward(pb, job_.dtype);
  const Stage& stage = net_[s];
  Buffer d = dy;
  for (std::size_t i = stage.units.size(); i-- > 0;) {
    const std::size_t unit = first_unit_[s] + i;
    d = backward.run(stage.units[i], weights_->use(pb, unit),
                     job_.weights ? &grads_[unit] : nullptr, i == 0 ? x : inputs[i], d);
  }
  if (stage.shortcut) backward.shortcut(stage.units.back(), dy, d);
  return d;
}

// The input on the device, in the network's form.
Buffer Gradients::enter(ProgramBuilder& pb) {
  const Buffer input = pb.temp("input", pb.shape(io_.input), DType::f32);
  ops::copy(pb, io_.input, input, Lane::upload);
  if (job_.part == Part::decoder || !job_.config.folded()) return ops::cast(pb, input, job_.dtype);
  const Shape s = pb.shape(input);
  const Buffer x = pb.temp("folded", {s[0], s[1] / 2, s[2] / 2, 12}, job_.dtype);
  ops::fold_blocks_into(pb, input, x, {.block = kPixelFold});
  return x;
}

void Gradients::record(ProgramSet& set) {
  ProgramBuilder pb(set, "grad");
  weights_->begin_program();
  for (const UnitBuffers& g : grads_) {
    for (const Buffer b : g) {
      if (b) ops::fill(pb, b, 0);
    }
  }
  std::vector<Buffer> stage_inputs;
  std::vector<std::vector<Buffer>> unit_inputs(net_.size());
  Buffer x = enter(pb);
  for (std::size_t s = 0; s < net_.size(); ++s) {
    stage_inputs.push_back(x);
    x = stage_forward(pb, s, x, job_.checkpointing ? nullptr : &unit_inputs[s]);
  }
  for (const Buffer b : stage_inputs) pb.set_role(b, Role::checkpoint);

  const bool unfolds = job_.part == Part::decoder && job_.config.folded();
  Buffer result = x;
  if (unfolds) {
    result = pb.temp("pixels", pb.shape(io_.result), DType::f32);
    ops::unfold_blocks_into(pb, x, result, {.block = kPixelFold});
  }
  ops::copy(pb, result, io_.result, Lane::download);
  const Buffer target = pb.temp("target", pb.shape(io_.target), DType::f32);
  ops::copy(pb, io_.target, target, Lane::upload);
  const Buffer loss = pb.temp("loss", {1}, DType::f64);
  ops::fill(pb, loss, 0);
  const Buffer dresult = pb.temp("dresult", pb.shape(result), DType::f32);
  ops::flow_loss(pb, {.pred = result, .target = target, .loss = loss, .dpred = dresult},
                 {.weight = 1.0 / static_cast<double>(pb.shape(result).elements())});
  ops::copy(pb, loss, io_.loss, Lane::download);

  Buffer d = dresult;
  if (unfolds) {
    d = pb.temp("dfolded", pb.shape(x), DType::f32);
    ops::fold_blocks_into(pb, dresult, d, {.block = kPixelFold});
  }
  for (std::size_t s = net_.size(); s-- > 0;) {
    std::vector<Buffer>& inputs = unit_inputs[s];
    if (job_.checkpointing && net_[s].units.size() > 1) {
      stage_forward(pb, s, stage_inputs[s], &inputs);
    }
    d = stage_backward(pb, s, stage_inputs[s], inputs, d);
  }
  if (job_.part == Part::encoder && job_.config.folded()) {
    const Buffer pixels = pb.temp("dpixels", pb.shape(io_.dinput), DType::f32);
    ops::unfold_blocks_into(pb, d, pixels, {.block = kPixelFold});
    d = pixels;
  }
  ops::copy(pb, d, io_.dinput, Lane::download);
}

}  // namespace ballast::wan_vae
