#include "nn/update.h"

#include <algorithm>

#include "core/error.h"
#include "nn/together_updated.h"
#include "ops/copy.h"
#include "ops/fill.h"
#include "ops/global_norm.h"

namespace ballast {
namespace {

// Elements of a tensor that visit the device together: 32 MiB of each f32 array.
constexpr std::int64_t kPieceElements = 8 << 20;

Lane lane_between(const ProgramBuilder& pb, Buffer from, Buffer to) {
  if (pb.tier(from) != pb.tier(to)) {
    return pb.tier(to) == Tier::device ? Lane::upload : Lane::download;
  }
  return pb.tier(to) == Tier::host ? Lane::host : Lane::compute;
}

// Values, gradient and states of a tensor visit the device together, piece by piece.
void update_in_pieces(ProgramBuilder& pb, const UpdatedTensor& t, Buffer factor,
                      const OptimizerOptions& options) {
  const std::int64_t total = pb.shape(t.value).elements();
  const auto quantum = update_quantum(options);
  const std::int64_t piece = quantum ? kPieceElements / *quantum * *quantum : total;
  const bool value_stays = pb.tier(t.value) == Tier::device;
  for (std::int64_t first = 0; first < total; first += piece) {
    const std::int64_t count = std::min(piece, total - first);
    // Whole tensors keep their shape: statistics by row and column need it.
    const auto cut = [&](Buffer b) {
      if (count == total) return b;
      return pb.view(b, static_cast<std::uint64_t>(first) * size_of(pb.dtype(b)), pb.dtype(b),
                     {count});
    };
    const auto up = [&](Buffer from) {
      const Buffer to = pb.temp("visiting", pb.shape(from), pb.dtype(from), Role::optimizer);
      ops::copy(pb, from, to, Lane::upload);
      return to;
    };
    const Buffer value = cut(t.value), visiting = value_stays ? value : up(value);
    std::vector<Buffer> states, visiting_states;
    for (std::size_t s = 0; s < t.states.size(); ++s) {
      states.push_back(count == total ? t.states[s]
                                      : cut_state(pb, t.specs[s], t.states[s], first, count));
      visiting_states.push_back(up(states.back()));
    }
    record_optimizer(pb, options,
                     {.p = visiting,
                      .g = up(cut(t.gradient)),
                      .factor = factor,
                      .states = visiting_states,
                      .site = t.name,
                      .first_element = first,
                      .decays = t.decays,
                      .rate = t.rate});
    if (!value_stays) ops::copy(pb, visiting, value, Lane::download);
    for (std::size_t s = 0; s < states.size(); ++s) {
      ops::copy(pb, visiting_states[s], states[s], Lane::download);
    }
    if (t.narrow) {
      ops::copy(pb, visiting, cut(t.narrow),
                pb.tier(t.narrow) == Tier::device ? Lane::compute : Lane::download);
    }
  }
}

}  // namespace

void declare_states(ProgramBuilder& pb, const OptimizerOptions& options, UpdatedTensor& t) {
  t.specs = state_specs(options, pb.shape(t.value), pb.dtype(t.value));
  for (const StateSpec& s : t.specs) {
    t.states.push_back(
        pb.persistent(t.name + s.suffix, s.shape, s.dtype, Role::optimizer, pb.tier(t.gradient)));
  }
}

void record_initial_state(ProgramBuilder& pb, std::span<const UpdatedTensor> tensors) {
  for (const UpdatedTensor& t : tensors) {
    if (t.narrow) ops::copy(pb, t.narrow, t.value, lane_between(pb, t.narrow, t.value));
    for (std::size_t s = 0; s < t.states.size(); ++s) {
      const Buffer state = t.states[s];
      if (t.specs[s].starts_as_parameter) {
        ops::copy(pb, t.value, state, lane_between(pb, t.value, state));
      } else {
        ops::fill(pb, state, 0, pb.tier(state) == Tier::host ? Lane::host : Lane::compute);
      }
    }
  }
}

void record_restored(ProgramBuilder& pb, std::span<const UpdatedTensor> tensors) {
  for (const UpdatedTensor& t : tensors) {
    if (t.narrow) ops::copy(pb, t.value, t.narrow, lane_between(pb, t.value, t.narrow));
  }
}

void record_gradient_norm(ProgramBuilder& pb, std::span<const UpdatedTensor> tensors,
                          double max_norm, Buffer factor, Buffer norm) {
  const Buffer sum = pb.temp("sum", {1}, DType::f64, Role::optimizer);
  ops::fill(pb, sum, 0);
  // Whole buffers: gradients that lie together are one, and a sum takes as long for a small tensor
  // as for a large one.
  std::vector<Buffer> gradients;
  for (const UpdatedTensor& t : tensors) {
    const Buffer whole = pb.set().spec(t.gradient).root;
    if (!gradients.empty() && gradients.back() == whole) continue;
    check(std::ranges::find(gradients, whole) == gradients.end(),
          "the gradients in {} do not follow each other", pb.set().name(whole));
    gradients.push_back(whole);
  }
  for (const Buffer gradient : gradients) {
    if (pb.tier(gradient) == Tier::device) {
      ops::sum_squares(pb, gradient, sum);
      continue;
    }
    // Gradients in host memory visit the device once more for the norm.
    const std::int64_t total = pb.shape(gradient).elements();
    for (std::int64_t first = 0; first < total; first += kPieceElements) {
      const std::int64_t count = std::min(kPieceElements, total - first);
      const DType dtype = pb.dtype(gradient);
      const Buffer g = pb.temp("visiting", {count}, dtype, Role::gradient);
      const std::uint64_t offset = static_cast<std::uint64_t>(first) * size_of(dtype);
      ops::copy(pb, pb.view(gradient, offset, dtype, {count}), g, Lane::upload);
      ops::sum_squares(pb, g, sum);
    }
  }
  const Buffer here = pb.temp("norm", {1}, DType::f32, Role::output);
  ops::clip_factor(pb, sum, max_norm, factor, here);
  ops::copy(pb, here, norm, Lane::download);
}

void record_update(ProgramBuilder& pb, std::span<const UpdatedTensor> tensors, Buffer factor,
                   const OptimizerOptions& options) {
  TogetherUpdated together(pb, options);
  std::vector<const UpdatedTensor*> added;
  const auto finish = [&] {
    together.flush();
    for (const UpdatedTensor* t : added) {
      if (t->narrow) ops::copy(pb, t->value, t->narrow, lane_between(pb, t->value, t->narrow));
    }
    added.clear();
  };
  for (const UpdatedTensor& t : tensors) {
    if (pb.tier(t.gradient) == Tier::host) {
      update_in_pieces(pb, t, factor, options);
      continue;
    }
    together.add({.p = t.value,
                  .g = t.gradient,
                  .factor = factor,
                  .states = t.states,
                  .site = t.name,
                  .first_element = 0,
                  .decays = t.decays,
                  .rate = t.rate});
    added.push_back(&t);
    if (!together.can_wait() || added.size() == TogetherUpdated::kMost) finish();
  }
  finish();
}

}  // namespace ballast
