#include "models/wan_vae/pass.h"

#include "core/error.h"
#include "ops/copy.h"

namespace ballast::wan_vae {
namespace {

// A decoder's last stage that doubles frames, or an encoder's first that halves them.
std::size_t cut_of(const Network& net) {
  std::size_t up = net.size();
  for (std::size_t s = 0; s < net.size(); ++s) {
    const UnitKind kind = net[s].units.back().kind;
    if (kind == UnitKind::down_3d) return s;
    if (kind == UnitKind::up_3d) up = s;
  }
  check(up < net.size(), "a network that changes no rate");
  return up;
}

}  // namespace

ForwardPass::ForwardPass(ProgramBuilder& pb, const Parts& parts, bool start)
    : pb_(pb),
      parts_(parts),
      units_(pb, parts.dtype, parts.caches),
      start_(start),
      end_(parts.net.size()),
      cut_(cut_of(parts.net)) {
  check(parts_.bands.empty() || !parts_.taps, "taps see whole frames");
}

void ForwardPass::decode(Buffer x, const Done& done) {
  grid_ = kGridPerLatent * pb_.shape(x)[1];
  go({}, x, [&](Buffer y, std::int64_t first) {
    if (!band_) return done(y, first, 0);
    done(kept(y, 0), first, kept_row(y));
  });
}

void ForwardPass::encode(const Rows& input, std::int64_t rows, const Done& done) {
  grid_ = rows / kRowsPerGrid;
  end_ = cut_ + 1;
  Buffer joined;
  in_bands(grid_, [&] {
    const std::int64_t first = band_ ? band_->first : 0, count = band_ ? band_->rows : grid_;
    go({}, input(kRowsPerGrid * first, kRowsPerGrid * count), [&](Buffer y, std::int64_t) {
      if (!band_) {
        joined = y;
        return;
      }
      Shape whole = pb_.shape(y);
      whole[1] = grid_;
      if (!joined) joined = pb_.temp("joined", whole, pb_.dtype(y));
      for (std::int64_t f = 0; f < whole[0]; ++f) {
        ops::copy(pb_, kept(y, f), rows_of_frame(pb_, joined, f, band_->keep, band_->kept));
      }
    });
  });
  end_ = parts_.net.size();
  std::size_t unit = 0;
  for (std::size_t s = 0; s <= cut_; ++s) unit += parts_.net[s].units.size();
  go({.stage = cut_ + 1, .unit = unit}, joined,
     [&](Buffer y, std::int64_t first) { done(y, first, 0); });
}

// Everything that is recorded at a resolution where bands may be: for each of them, or once. Whole
// frames are multiplied in calls of the same sizes as bands.
void ForwardPass::in_bands(std::int64_t grid, const std::function<void()>& record) {
  if (parts_.bands.empty()) {
    units_.set_rows({.grid = grid, .whole = grid});
    record();
  }
  for (const Band& b : parts_.bands) {
    band_ = &b;
    units_.set_rows({.grid = b.rows, .whole = grid});
    record();
  }
  band_ = nullptr;
  units_.set_rows({});
}

Buffer ForwardPass::kept(Buffer frames, std::int64_t f) {
  const std::int64_t lines = pb_.shape(frames)[1] / band_->rows;
  return rows_of_frame(pb_, frames, f, lines * (band_->keep - band_->first), lines * band_->kept);
}

std::int64_t ForwardPass::kept_row(Buffer frames) const {
  return pb_.shape(frames)[1] / band_->rows * band_->keep;
}

void ForwardPass::tap(bool tapped, const std::string& name, Buffer frames, std::int64_t at) {
  if (tapped && parts_.taps) parts_.taps->tap(pb_, name, 0, frames, at);
}

void ForwardPass::go(const Place& p, Buffer x, const Made& done) {
  if (p.stage == end_) return done(x, p.at);
  const Stage& stage = parts_.net[p.stage];
  const Buffer input = x;
  const bool start = start_ && p.at == 0;
  if (parts_.caches) {
    parts_.caches->visit(band_ ? static_cast<int>(band_ - parts_.bands.data()) : -1, p.last);
  }
  for (std::size_t i = 0; i < stage.units.size(); ++i) {
    const Unit& u = stage.units[i];
    if (u.kind == UnitKind::up_2d || u.kind == UnitKind::up_3d) return up(p, x, input, done);
    // What others read later may not be overwritten: a stage's input, and what is a part of more.
    const bool consume = !(x == input);
    x = units_.run(u, parts_.weights.use(pb_, p.unit + i), x, start, consume);
    tap(u.tapped, u.name, x, p.at);
  }
  if (stage.shortcut) units_.fold_shortcut(input, x, start);
  tap(stage.tapped, stage.name, x, p.at);
  go({p.stage + 1, p.unit + stage.units.size(), p.at, p.last}, x, done);
}

// The last unit of a decoder's stage, and everything after it.
void ForwardPass::up(const Place& p, Buffer x, Buffer input, const Made& done) {
  const Stage& stage = parts_.net[p.stage];
  const Unit& u = stage.units.back();
  const std::size_t unit = p.unit + stage.units.size() - 1;
  Low low = {.frames = x,
             .input = input,
             .at = p.at,
             .start = start_ && p.at == 0,
             .faster = u.kind == UnitKind::up_3d};
  if (low.faster) {
    const auto scope = pb_.scope(u.name);
    low.frames = units_.time_up(u, parts_.weights.use(pb_, unit), x, low.start);
    low.at = start_ && p.at > 0 ? 2 * p.at - 1 : 2 * p.at;
  }
  if (p.stage != cut_) return double_frames(p, low, done);
  in_bands(pb_.shape(x)[1], [&] { double_frames(p, low, done); });
}

void ForwardPass::double_frames(const Place& p, const Low& low, const Made& done) {
  const Stage& stage = parts_.net[p.stage];
  const Unit& u = stage.units.back();
  const std::size_t unit = p.unit + stage.units.size() - 1;
  const std::int64_t count = pb_.shape(low.frames)[0];
  // All frames together come to where bands begin: each band then comes once.
  const bool one_by_one = band_ || (parts_.bands.empty() && parts_.slices);
  const std::int64_t step = one_by_one ? 1 : count;
  const auto part = [&](Buffer frames, std::int64_t f, std::int64_t n) {
    if (band_ && p.stage == cut_) return rows_of_frame(pb_, frames, f, band_->first, band_->rows);
    return pb_.rows(frames, f, n);
  };
  for (std::int64_t f = 0; f < count; f += step) {
    const UnitBuffers& w = parts_.weights.use(pb_, unit);
    const Buffer y = [&] {
      const auto scope = pb_.scope(u.name);
      return units_.space_up(u, w, part(low.frames, f, step));
    }();
    for (std::int64_t i = f; stage.shortcut && i < f + step; ++i) {
      const std::int64_t from = !low.faster ? i : low.start ? (i + 1) / 2 : i / 2;
      units_.unfold_shortcut(part(low.input, from, 1), pb_.rows(y, i - f, 1));
    }
    tap(u.tapped, u.name, y, low.at + f);
    tap(stage.tapped, stage.name, y, low.at + f);
    go({p.stage + 1, unit + 1, low.at + f, p.last && f + step >= count}, y, done);
  }
}

}  // namespace ballast::wan_vae
