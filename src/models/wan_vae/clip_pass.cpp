#include "models/wan_vae/clip_pass.h"

#include "ops/copy.h"
#include "ops/space_to_depth.h"

namespace ballast::wan_vae {
namespace {

bool is_up(const Unit& u) { return u.kind == UnitKind::up_2d || u.kind == UnitKind::up_3d; }

}  // namespace

ClipPass::ClipPass(ProgramBuilder& pb, const Parts& parts)
    : pb_(pb), parts_(parts), unit_inputs_(parts.net.size()) {
  std::size_t unit = 0;
  for (const Stage& s : parts.net) {
    first_unit_.push_back(unit);
    unit += s.units.size();
  }
}

Buffer ClipPass::stage_forward(std::size_t s, Buffer x, std::vector<Buffer>* inputs) {
  UnitForward forward(pb_, parts_.dtype, nullptr);
  const Stage& stage = parts_.net[s];
  const Buffer input = x;
  for (std::size_t i = 0; i < stage.units.size(); ++i) {
    const Unit& u = stage.units[i];
    if (inputs) inputs->push_back(x);
    const UnitBuffers& w = parts_.weights.use(pb_, first_unit_[s] + i);
    if (!is_up(u)) {
      x = forward.run(u, w, x, true, !inputs && !(x == input));
      continue;
    }
    const auto scope = pb_.scope(u.name);
    const bool faster = u.kind == UnitKind::up_3d;
    x = forward.space_up(u, w, faster ? forward.time_up(u, w, x, true) : x);
    for (std::int64_t f = 0; stage.shortcut && f < pb_.shape(x)[0]; ++f) {
      forward.unfold_shortcut(pb_.rows(input, faster ? (f + 1) / 2 : f, 1), pb_.rows(x, f, 1));
    }
  }
  if (stage.shortcut && !is_up(stage.units.back())) forward.fold_shortcut(input, x, true);
  return x;
}

Buffer ClipPass::forward(Buffer x) {
  stage_inputs_.clear();
  for (std::size_t s = 0; s < parts_.net.size(); ++s) {
    stage_inputs_.push_back(x);
    unit_inputs_[s].clear();
    x = stage_forward(s, x, parts_.checkpointing ? nullptr : &unit_inputs_[s]);
  }
  for (const Buffer b : stage_inputs_) pb_.set_role(b, Role::checkpoint);
  return x;
}

Buffer ClipPass::backward(Buffer dy, const std::vector<UnitBuffers>* grads, bool input) {
  Buffer d = dy;
  for (std::size_t s = parts_.net.size(); s-- > 0;) {
    std::vector<Buffer>& inputs = unit_inputs_[s];
    const Stage& stage = parts_.net[s];
    if (parts_.checkpointing && stage.units.size() > 1) {
      stage_forward(s, stage_inputs_[s], &inputs);
    }
    UnitBackward backward(pb_, parts_.dtype);
    const Buffer dresult = d;
    for (std::size_t i = stage.units.size(); i-- > 0;) {
      const std::size_t unit = first_unit_[s] + i;
      d = backward.run(stage.units[i], parts_.weights.use(pb_, unit),
                       grads ? &(*grads)[unit] : nullptr, i == 0 ? stage_inputs_[s] : inputs[i], d,
                       input || unit > 0);
    }
    if (stage.shortcut) backward.shortcut(stage.units.back(), dresult, d);
  }
  return d;
}

Buffer fold_pixels(ProgramBuilder& pb, const Config& c, Buffer pixels, DType dtype) {
  if (!c.folded()) return ops::cast(pb, pixels, dtype);
  const Shape s = pb.shape(pixels);
  const Buffer x = pb.temp("folded", {s[0], s[1] / 2, s[2] / 2, 12}, dtype);
  ops::space_to_depth_into(pb, pixels, x, {.block = kPixelFold});
  return x;
}

Buffer unfold_pixels(ProgramBuilder& pb, const Config& c, Buffer folded) {
  if (!c.folded()) return folded;
  const Shape s = pb.shape(folded);
  const Buffer pixels = pb.temp("pixels", {s[0], 2 * s[1], 2 * s[2], 3}, DType::f32);
  ops::depth_to_space_into(pb, folded, pixels, {.block = kPixelFold});
  return pixels;
}

}  // namespace ballast::wan_vae
