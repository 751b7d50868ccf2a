#include "models/wan_vae/units.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "nn/prefetch_order.h"
#include "ops/add.h"
#include "ops/copy.h"
#include "ops/fill.h"
#include "ops/kernels/token_quantum.h"
#include "ops/linear/linear.h"
#include "ops/rms_norm.h"
#include "ops/softmax.h"
#include "ops/space_to_depth.h"

namespace ballast::wan_vae {
namespace {

using S = TensorSlots;

// The norm divides by max(|x|, 1e-12). Under the root of a mean of squares the square of that floor
// is lost beside any |x| that f32 tells from it, and a pixel of zeros stays zero.
float norm_eps(std::int64_t channels) { return 1e-24f / static_cast<float>(channels); }

}  // namespace

Buffer as_rows(ProgramBuilder& pb, Buffer x) {
  return pb.reshape(x, {pb.shape(x).rows(), pb.shape(x).back()});
}

void FrameCaches::visit(int band, bool last_time) {
  band_ = band;
  last_time_ = last_time;
}

std::string FrameCaches::key(const std::string& name, int band) {
  return band < 0 ? name : fmt::format("{}.band{}", name, band);
}

Buffer FrameCaches::persistent(ProgramBuilder& pb, const std::string& name, const Shape& frames,
                               DType dtype, bool start) {
  const int index = order_.try_emplace(name, static_cast<int>(order_.size())).first->second;
  const bool on_host = last_ ? index >= kEncoder - hosted_ : index < hosted_;
  const std::string at = key(name, band_);
  Buffer& persistent = persistent_[at];
  if (!persistent) {
    persistent = pb.persistent(at + ".history", frames, dtype, Role::checkpoint,
                               on_host ? Tier::host : Tier::device);
  }
  if (!on_host || band_ < 0) return persistent;
  Brought& b = brought_[at];
  b.again = static_cast<bool>(b.here);
  if (b.again) return b.here;
  b.here = pb.temp("history", frames, dtype);
  if (!start) upload(pb, persistent, b.here);
  return b.here;
}

void FrameCaches::leave(ProgramBuilder& pb, const std::string& name, bool start) {
  const auto found = brought_.find(key(name, band_));
  if (!last_time_ || found == brought_.end()) return;
  ops::copy(pb, found->second.here, persistent_[found->first], Lane::download);
  const std::string next = key(name, band_ + 1);
  const auto persistent = persistent_.find(next);
  if (!start && found->second.again && persistent != persistent_.end()) {
    const Buffer to =
        pb.temp("history", pb.shape(persistent->second), pb.dtype(persistent->second));
    ops::copy(pb, persistent->second, to, Lane::upload);
    brought_[next] = {.here = to};
  }
  brought_.erase(found);
}

Buffer FrameCaches::history(ProgramBuilder& pb, Buffer persistent) {
  if (pb.tier(persistent) == Tier::device) return persistent;
  const Buffer here = pb.temp("history", pb.shape(persistent), pb.dtype(persistent));
  upload(pb, persistent, here);
  return here;
}

void FrameCaches::upload(ProgramBuilder& pb, Buffer persistent, Buffer to) {
  if (pb.tier(persistent) == Tier::device) return ops::copy(pb, persistent, to);
  ops::copy(pb, persistent, to, Lane::upload);
  prefetch_beside(pb.set(), pb.set().programs.size() - 1);
}

Buffer UnitForward::frames(std::string_view name, const Shape& like, std::int64_t channels,
                           DType dtype) {
  Shape s = like;
  s[3] = channels;
  return pb_.temp(name, s, dtype);
}

Buffer UnitForward::norm(Buffer x, Buffer gamma, Buffer y, Buffer* factor) {
  const Buffer r = pb_.temp("factor", {pb_.shape(x).rows()}, DType::f32);
  ops::rms_norm_into(pb_, as_rows(pb_, x), gamma, as_rows(pb_, y), r,
                     norm_eps(pb_.shape(x).back()));
  if (factor) *factor = r;
  return y;
}

// y = silu(norm(x)); y may be x.
void UnitForward::activate(Buffer x, Buffer gamma, Buffer y) {
  const Buffer r = pb_.temp("factor", {pb_.shape(x).rows()}, DType::f32);
  ops::rms_norm_silu_into(pb_, as_rows(pb_, x), gamma, as_rows(pb_, y), r,
                          norm_eps(pb_.shape(x).back()));
}

// The last frames of (what was there, x), of which the first frames of x count only from `first`
// on.
void UnitForward::remember(Buffer persistent, Buffer history, Buffer x, std::int64_t first,
                           bool start) {
  const std::int64_t keep = pb_.shape(persistent)[0], count = pb_.shape(x)[0] - first;
  const Lane lane = pb_.tier(persistent) == Tier::host ? Lane::download : Lane::compute;
  const std::int64_t fresh = std::min(keep, count), old = keep - fresh;
  if (old > 0 && start) {
    const Buffer zero = pb_.temp("zero", {1, pb_.shape(x)[1], pb_.shape(x)[2], pb_.shape(x)[3]},
                                 pb_.dtype(persistent));
    ops::fill(pb_, zero, 0);
    for (std::int64_t i = 0; i < old; ++i) ops::copy(pb_, zero, pb_.rows(persistent, i, 1), lane);
  } else {
    for (std::int64_t i = 0; i < old; ++i) {
      ops::copy(pb_, pb_.rows(history, fresh + i, 1), pb_.rows(persistent, i, 1), lane);
    }
  }
  if (fresh == 0) return;
  ops::copy(pb_, pb_.rows(x, pb_.shape(x)[0] - fresh, fresh), pb_.rows(persistent, old, fresh),
            lane);
}

UnitForward::Input UnitForward::input_of(Buffer reuse, Shape like, std::int64_t channels,
                                         std::int64_t outputs, DType y_dtype) {
  const bool joined = pb_.backend().device == Device::cuda && dtype_ == DType::bf16 &&
                      y_dtype == DType::bf16 && channels % 8 == 0 && outputs % 8 == 0;
  if (!joined && reuse) return {reuse, reuse};
  Shape s = like;
  s[3] = channels;
  if (joined) s[0] += 2;
  const Buffer all = pb_.temp("input", s, dtype_);
  return {all, joined ? pb_.rows(all, 2, like[0]) : all};
}

// The two frames in front of the fresh ones: those of the chunk before, or zeros.
void UnitForward::join(const Input& x, Buffer persistent, bool start) {
  const Buffer front = pb_.rows(x.all, 0, 2);
  if (start) return ops::fill(pb_, front, 0);
  FrameCaches::upload(pb_, persistent, front);
}

void UnitForward::causal_into(const Input& x, Buffer w, Buffer bias, const std::string& cache,
                              bool start, Buffer y, bool accumulate) {
  const std::int64_t count = pb_.shape(x.fresh)[0];
  Buffer persistent, history;
  if (caches_) {
    Shape two = pb_.shape(x.fresh);
    two[0] = 2;
    persistent = caches_->persistent(pb_, cache, two, pb_.dtype(x.fresh), start);
  }
  check(start || persistent, "{}: frames that follow on nothing", cache);
  if (x.joined()) {
    join(x, persistent, start);
  } else if (!start) {
    history = caches_->history(pb_, persistent);
  }
  convolve(x.all, history, w, bias, y,
           {.geometry = x.joined() ? kCausalJoined : kCausal,
            .accumulate = accumulate,
            .frames = count});
  if (!persistent) return;
  if (x.joined()) {
    ops::copy(pb_, pb_.rows(x.all, count, 2), persistent,
              pb_.tier(persistent) == Tier::host ? Lane::download : Lane::compute);
  } else {
    remember(persistent, history, x.fresh, 0, start);
  }
  caches_->leave(pb_, cache, start);
}

// Where frames may be cut into bands, their rows are multiplied in calls that every band of them
// makes as well, by the algorithm that whole frames have.
void UnitForward::convolve(Buffer x, Buffer history, Buffer w, Buffer bias, Buffer y,
                           ops::ConvOptions options) {
  if (rows_.grid > 0) {
    options.lines = pb_.shape(y)[1] / rows_.grid;
    options.whole_height = options.lines * rows_.whole;
  }
  ops::conv3d_into(pb_, x, history, {w, bias, {}}, y, options);
}

Buffer UnitForward::causal(const Input& x, Buffer w, Buffer bias, const std::string& cache,
                           bool start, std::int64_t outputs, DType y_dtype) {
  const Buffer y = frames("conv", pb_.shape(x.fresh), outputs, y_dtype);
  causal_into(x, w, bias, cache, start, y, false);
  return y;
}

Buffer UnitForward::point(Buffer x, Buffer w, Buffer bias, std::int64_t outputs, DType y_dtype) {
  const Buffer y = frames("point", pb_.shape(x), outputs, y_dtype);
  convolve(x, {}, w, bias, y, {.geometry = kPoint, .frames = pb_.shape(x)[0]});
  return y;
}

std::int64_t UnitForward::query_rows(std::int64_t positions) {
  constexpr std::int64_t kScores = 64 << 20;  // bytes of f32
  const std::int64_t quanta = kScores / 4 / positions / kTokenQuantum;
  return std::max(quanta, std::int64_t{1}) * kTokenQuantum;
}

// o = softmax(q k^T / sqrt(C)) v, frame by frame.
void UnitForward::attend(Buffer qkv, Buffer o) {
  const Shape s = pb_.shape(o);
  const std::int64_t positions = s[1] * s[2], width = s[3], step = query_rows(positions);
  const Buffer all = pb_.reshape(qkv, {s[0] * positions, 3 * width});
  const Buffer out = pb_.reshape(o, {s[0] * positions, width});
  for (std::int64_t t = 0; t < s[0]; ++t) {
    const Buffer frame = pb_.rows(all, t * positions, positions);
    const Buffer k = pb_.columns(frame, width, width), v = pb_.columns(frame, 2 * width, width);
    for (std::int64_t first = 0; first < positions; first += step) {
      const std::int64_t rows = std::min(step, positions - first);
      const Buffer q = pb_.columns(pb_.rows(frame, first, rows), 0, width);
      const Buffer scores = pb_.temp("scores", {rows, positions}, DType::f32);
      ops::linear_into(pb_, q, {k, {}, {}}, scores);
      const Buffer p = dtype_ == DType::f32 ? scores : pb_.temp("p", {rows, positions}, dtype_);
      ops::softmax_into(pb_, scores, p, 1.0f / std::sqrt(static_cast<float>(width)));
      ops::linear_dx_into(pb_, p, {v, {}, {}}, pb_.rows(out, t * positions + first, rows));
    }
  }
}

// Every second position, then every second frame: out[0] = x[0], out[m] from 2m-2, 2m-1, 2m.
Buffer UnitForward::down(const Unit& u, const UnitBuffers& w, Buffer x, bool start) {
  Shape half = pb_.shape(x);
  half[1] /= 2;
  half[2] /= 2;
  const Buffer y = frames("down", half, u.out, dtype_);
  convolve(x, {}, w[S::conv], w[S::bias], y, {.geometry = kDown, .frames = half[0]});
  if (u.kind == UnitKind::down_2d) return y;
  Shape slower = pb_.shape(y);
  slower[0] = start ? 1 + (half[0] - 1) / 2 : half[0] / 2;
  const Buffer out = pb_.temp("slower", slower, dtype_);
  Buffer persistent, history;
  if (caches_) {
    Shape one = slower;
    one[0] = 1;
    persistent = caches_->persistent(pb_, u.name + ".time", one, dtype_, start);
    if (!start) history = caches_->history(pb_, persistent);
  }
  check(start || history, "{}: frames that follow on nothing", u.name);
  if (start) ops::copy(pb_, pb_.rows(y, 0, 1), pb_.rows(out, 0, 1));
  const std::int64_t made = start ? slower[0] - 1 : slower[0];
  if (made > 0) {
    convolve(
        y, history, w[S::conv2], w[S::bias2], out,
        {.geometry = start ? kTimeDown : kTimeDownOn, .frames = made, .y_first = start ? 1 : 0});
  }
  if (persistent) {
    remember(persistent, history, y, 0, start);
    caches_->leave(pb_, u.name + ".time", start);
  }
  return out;
}

// Frame 0 stays one frame and no other sees it; each other one becomes two.
Buffer UnitForward::time_up(const Unit& u, const UnitBuffers& w, Buffer x, bool start) {
  const std::int64_t count = pb_.shape(x)[0], first = start ? 1 : 0, width = u.in;
  Shape faster = pb_.shape(x);
  faster[0] = 2 * count - first;
  const Buffer out = pb_.temp("faster", faster, dtype_);
  Buffer persistent, history;
  if (caches_) {
    Shape two = faster;
    two[0] = 2;
    persistent = caches_->persistent(pb_, u.name + ".time", two, dtype_, start);
    if (!start) history = caches_->history(pb_, persistent);
  }
  check(start || history, "{}: frames that follow on nothing", u.name);
  if (start) ops::copy(pb_, pb_.rows(x, 0, 1), pb_.rows(out, 0, 1));
  for (std::int64_t half = 0; half < 2 && count > first; ++half) {
    ops::conv3d_into(
        pb_, pb_.rows(x, first, count - first), history,
        {pb_.rows(w[S::conv2], half * width, width),
         pb_.rows(w[S::bias2], half * width, width),
         {}},
        out, {.geometry = kTimeUp, .frames = count - first, .y_first = first + half, .y_step = 2});
  }
  if (persistent) remember(persistent, history, x, first, start);
  return out;
}

Buffer UnitForward::space_up(const Unit& u, const UnitBuffers& w, Buffer x) {
  Shape twice = pb_.shape(x);
  twice[1] *= 2;
  twice[2] *= 2;
  const Buffer y = frames("up", twice, u.out, dtype_);
  convolve(x, {}, w[S::conv], w[S::bias], y, {.geometry = kUp, .frames = twice[0]});
  return y;
}

void UnitForward::fold_shortcut(Buffer from, Buffer y, bool start) {
  const Shape &a = pb_.shape(from), &b = pb_.shape(y);
  if (a == b) return ops::add_into(pb_, as_rows(pb_, from), as_rows(pb_, y));
  const int time = a[3] == b[3] ? 1 : 2;
  ops::space_to_depth_into(pb_, from, y,
                           {.block = {.time = time, .space = 2, .lead = start ? time - 1 : 0},
                            .scale = 0.25f,
                            .accumulate = true});
}

void UnitForward::unfold_shortcut(Buffer frame, Buffer y) {
  ops::depth_to_space_into(pb_, frame, y, {.block = {.space = 2}, .accumulate = true});
}

Buffer UnitForward::run(const Unit& u, const UnitBuffers& w, Buffer x, bool start, bool consume) {
  const auto scope = pb_.scope(u.name);
  switch (u.kind) {
    case UnitKind::conv_in: {
      const Input in = input_of(x, pb_.shape(x), u.in, u.out, dtype_);
      if (in.joined()) ops::copy(pb_, x, in.fresh);
      return causal(in, w[S::conv], w[S::bias], u.name, start, u.out, dtype_);
    }
    case UnitKind::point:
      // Latents keep their digits on their way out.
      return point(x, w[S::conv], w[S::bias], u.out, pb_.dtype(x));
    case UnitKind::head: {
      const Input n = input_of({}, pb_.shape(x), u.in, u.out, DType::f32);
      activate(x, w[S::norm], n.fresh);
      return causal(n, w[S::conv], w[S::bias], u.name, start, u.out, DType::f32);
    }
    case UnitKind::residual: {
      const Input n = input_of({}, pb_.shape(x), u.in, u.out, dtype_);
      activate(x, w[S::norm], n.fresh);
      // What the result is added to is made first: of a wider input nothing else is needed then.
      Buffer y = x;
      if (w[S::shortcut]) {
        y = point(x, w[S::shortcut], w[S::shortcut_bias], u.out, dtype_);
      } else if (!consume) {
        y = frames("sum", pb_.shape(x), u.out, dtype_);
        ops::copy(pb_, x, y);
      }
      const Buffer v = causal(n, w[S::conv], w[S::bias], u.name + ".0", start, u.out, dtype_);
      const Input second = input_of(v, pb_.shape(v), u.out, u.out, dtype_);
      activate(v, w[S::norm2], second.fresh);
      causal_into(second, w[S::conv2], w[S::bias2], u.name + ".1", start, y, true);
      return y;
    }
    case UnitKind::attention: {
      const Buffer n = frames("norm", pb_.shape(x), u.in, dtype_);
      norm(x, w[S::norm], n);
      const Buffer qkv = point(n, w[S::conv], w[S::bias], 3 * u.in, dtype_);
      const Buffer o = frames("attended", pb_.shape(x), u.in, dtype_);
      attend(qkv, o);
      Buffer y = x;
      if (!consume) {
        y = frames("sum", pb_.shape(x), u.out, dtype_);
        ops::copy(pb_, x, y);
      }
      ops::conv3d_into(pb_, o, {}, {w[S::conv2], w[S::bias2], {}}, y,
                       {.geometry = kPoint, .accumulate = true, .frames = pb_.shape(x)[0]});
      return y;
    }
    case UnitKind::down_2d:
    case UnitKind::down_3d:
      return down(u, w, x, start);
    case UnitKind::up_2d:
    case UnitKind::up_3d:
      break;
  }
  fail(ErrorCode::internal, "{} is not run in one piece", u.name);
}

}  // namespace ballast::wan_vae
