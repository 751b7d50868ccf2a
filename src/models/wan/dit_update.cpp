#include "models/wan/dit_update.h"

#include <algorithm>

#include "core/error.h"
#include "ops/copy.h"
#include "ops/fill.h"
#include "ops/global_norm.h"

namespace ballast::wan {
namespace {

// Elements of a tensor that visit the device together: four f32 arrays of 32 MiB.
constexpr std::int64_t kPieceElements = 8 << 20;

struct Trained {
  Buffer p, m, v, g;
  Buffer narrow;  // what the forward pass reads when it is not p itself
};

// Moments (and f32 masters where the weights are narrower) of everything that is trained.
std::vector<Trained> declare_state(ProgramBuilder& pb, const DitJob& job,
                                   const BlockWeights& weights, const DitIo& io) {
  std::vector<Trained> all;
  for (const AdapterIo& a : io.adapters) {
    all.push_back({a.a, a.a_m, a.a_v, a.da, {}});
    all.push_back({a.b, a.b_m, a.b_v, a.db, {}});
  }
  if (job.mode != Mode::full) return all;
  std::size_t next = 0;
  for (int group = 0; group < weights.groups(); ++group) {
    const std::vector<WeightBuffers> home = weights.home(pb, group);
    for (std::size_t t = 0; t < home.size(); ++t) {
      const NamedGradient& g = io.gradients[next++];
      const Tier tier = pb.tier(g.gradient);
      const Shape shape = pb.shape(g.gradient);
      const auto state = [&](const char* what) {
        return pb.persistent(g.name + what, shape, DType::f32, Role::optimizer, tier);
      };
      Trained trained = {home[t].data, state(".m"), state(".v"), g.gradient, {}};
      if (pb.dtype(home[t].data) != DType::f32 || pb.tier(home[t].data) != tier) {
        trained.narrow = home[t].data;
        trained.p = state(".master");
      }
      all.push_back(trained);
    }
  }
  return all;
}

void update_in_pieces(ProgramBuilder& pb, const Trained& t, Buffer factor,
                      const ops::AdamWOptions& options) {
  const std::int64_t total = pb.shape(t.p).elements();
  const auto flat = [&](Buffer b, std::int64_t first, std::int64_t count) {
    return pb.view(b, static_cast<std::uint64_t>(first) * size_of(pb.dtype(b)), pb.dtype(b),
                   {count});
  };
  for (std::int64_t first = 0; first < total; first += kPieceElements) {
    const std::int64_t count = std::min(kPieceElements, total - first);
    const auto up = [&](Buffer from) {
      const Buffer to = pb.temp("visiting", {count}, DType::f32, Role::optimizer);
      ops::copy(pb, flat(from, first, count), to, Lane::upload);
      return to;
    };
    const Buffer p = up(t.p), m = up(t.m), v = up(t.v), g = up(t.g);
    ops::adamw(pb, p, m, v, g, factor, options);
    ops::copy(pb, p, flat(t.p, first, count), Lane::download);
    ops::copy(pb, m, flat(t.m, first, count), Lane::download);
    ops::copy(pb, v, flat(t.v, first, count), Lane::download);
    if (t.narrow) ops::copy(pb, p, flat(t.narrow, first, count), Lane::download);
  }
}

}  // namespace

void record_update(ProgramSet& set, const DitJob& job, const BlockWeights& weights, DitIo& io) {
  std::vector<Trained> all;
  {
    ProgramBuilder init(set, "init_state");
    all = declare_state(init, job, weights, io);
    for (const Trained& t : all) {
      if (!t.narrow) continue;
      const bool on_host = init.tier(t.p) == Tier::host;
      ops::copy(init, t.narrow, t.p,
                init.tier(t.narrow) != init.tier(t.p) ? Lane::download
                : on_host                             ? Lane::host
                                                      : Lane::compute);
    }
  }
  ProgramBuilder pb(set, "update");
  const auto on_device = [&](const Trained& t) { return pb.tier(t.g) == Tier::device; };

  // Gradients in host memory visit the device once more for the norm.
  const Buffer sum = pb.temp("sum", {1}, DType::f64, Role::optimizer);
  ops::fill(pb, sum, 0);
  for (const Trained& t : all) {
    if (on_device(t)) {
      ops::sum_squares(pb, t.g, sum);
      continue;
    }
    const std::int64_t total = pb.shape(t.g).elements();
    for (std::int64_t first = 0; first < total; first += kPieceElements) {
      const std::int64_t count = std::min(kPieceElements, total - first);
      const Buffer g = pb.temp("visiting", {count}, DType::f32, Role::gradient);
      ops::copy(pb, pb.view(t.g, static_cast<std::uint64_t>(first) * 4, DType::f32, {count}), g,
                Lane::upload);
      ops::sum_squares(pb, g, sum);
    }
  }
  const Buffer factor = pb.temp("factor", {1}, DType::f32, Role::optimizer);
  const Buffer norm = pb.temp("norm", {1}, DType::f32, Role::output);
  ops::clip_factor(pb, sum, job.max_grad_norm, factor, norm);
  io.grad_norm = pb.persistent("grad_norm", {1}, DType::f32, Role::output, Tier::host);
  ops::copy(pb, norm, io.grad_norm, Lane::download);

  for (const Trained& t : all) {
    if (!on_device(t)) {
      update_in_pieces(pb, t, factor, job.adamw);
      continue;
    }
    ops::adamw(pb, t.p, t.m, t.v, t.g, factor, job.adamw);
    if (t.narrow) ops::copy(pb, t.p, t.narrow);
  }
}

}  // namespace ballast::wan
