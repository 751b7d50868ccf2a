#include "models/wan_vae/pass.h"

namespace ballast::wan_vae {

void ForwardPass::tap(bool tapped, const std::string& name, Buffer frames, std::int64_t at) {
  if (tapped && parts_.taps) parts_.taps->tap(pb_, name, frames, at);
}

void ForwardPass::go(std::size_t s, std::size_t first_unit, Buffer x, std::int64_t at,
                     const Done& done) {
  if (s == parts_.net.size()) return done(x, at);
  const Stage& stage = parts_.net[s];
  const Buffer input = x;
  const bool start = start_ && at == 0;
  for (std::size_t i = 0; i < stage.units.size(); ++i) {
    const Unit& u = stage.units[i];
    if (u.kind == UnitKind::up_2d || u.kind == UnitKind::up_3d) {
      return up(s, first_unit + i, x, input, at, done);
    }
    // What others read later may not be overwritten: a stage's input, and what is a part of more.
    const bool consume = !(x == input);
    x = units_.run(u, parts_.weights.use(pb_, first_unit + i), x, start, consume);
    tap(u.tapped, u.name, x, at);
  }
  if (stage.shortcut) units_.fold_shortcut(input, x, start);
  tap(stage.tapped, stage.name, x, at);
  go(s + 1, first_unit + stage.units.size(), x, at, done);
}

// The last unit of a decoder's stage, and everything after it.
void ForwardPass::up(std::size_t s, std::size_t unit, Buffer x, Buffer input, std::int64_t at,
                     const Done& done) {
  const Stage& stage = parts_.net[s];
  const Unit& u = stage.units.back();
  const bool start = start_ && at == 0, faster = u.kind == UnitKind::up_3d;
  const Buffer low = faster ? [&] {
    const auto scope = pb_.scope(u.name);
    return units_.time_up(u, parts_.weights.use(pb_, unit), x, start);
  }() : x;
  const std::int64_t made_at = !faster ? at : start_ && at > 0 ? 2 * at - 1 : 2 * at;
  const std::int64_t count = pb_.shape(low)[0], step = parts_.slices ? 1 : count;
  for (std::int64_t f = 0; f < count; f += step) {
    const UnitBuffers& w = parts_.weights.use(pb_, unit);
    const Buffer y = [&] {
      const auto scope = pb_.scope(u.name);
      return units_.space_up(u, w, pb_.rows(low, f, step));
    }();
    for (std::int64_t i = f; stage.shortcut && i < f + step; ++i) {
      const std::int64_t from = !faster ? i : start ? (i + 1) / 2 : i / 2;
      units_.unfold_shortcut(pb_.rows(input, from, 1), pb_.rows(y, i - f, 1));
    }
    tap(u.tapped, u.name, y, made_at + f);
    tap(stage.tapped, stage.name, y, made_at + f);
    go(s + 1, unit + 1, y, made_at + f, done);
  }
}

}  // namespace ballast::wan_vae
