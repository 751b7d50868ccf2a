#include "models/wan/dit_update.h"

#include <algorithm>

#include "core/error.h"
#include "ops/copy.h"
#include "ops/fill.h"
#include "ops/global_norm.h"

namespace ballast::wan {
namespace {

// Elements of a tensor that visit the device together: 32 MiB of each f32 array.
constexpr std::int64_t kPieceElements = 8 << 20;

Lane lane_between(const ProgramBuilder& pb, Buffer from, Buffer to) {
  if (pb.tier(from) != pb.tier(to)) {
    return pb.tier(to) == Tier::device ? Lane::upload : Lane::download;
  }
  return pb.tier(to) == Tier::host ? Lane::host : Lane::compute;
}

// The factors of a block's adapters are parts of one buffer; so are their states, where every
// element has its own.
class StateMemory {
 public:
  void declare(ProgramBuilder& pb, const OptimizerOptions& options, TrainedTensor& t,
               bool adapter) {
    t.specs = state_specs(options, pb.shape(t.value), pb.dtype(t.value));
    const BufferSpec value = pb.set().spec(t.value);
    const bool whole = !adapter || !one_state_per_element(options, t.specs);
    for (std::size_t i = 0; i < t.specs.size(); ++i) {
      const StateSpec& s = t.specs[i];
      if (whole) {
        t.states.push_back(pb.persistent(t.name + s.suffix, s.shape, s.dtype, Role::optimizer,
                                         pb.tier(t.gradient)));
        continue;
      }
      if (value.root != root_) states_.clear(), root_ = value.root;
      if (states_.size() <= i) {
        states_.push_back(pb.persistent(pb.set().name(value.root) + s.suffix, pb.shape(value.root),
                                        s.dtype, Role::optimizer, pb.tier(t.gradient)));
      }
      t.states.push_back(pb.view(states_[i], value.offset / size_of(value.dtype) * size_of(s.dtype),
                                 s.dtype, s.shape));
    }
  }

 private:
  static bool one_state_per_element(const OptimizerOptions& o,
                                    const std::vector<StateSpec>& specs) {
    if (o.kind != OptimizerKind::adamw && o.kind != OptimizerKind::adamw_optimi) return false;
    return std::ranges::all_of(specs, [](const StateSpec& s) { return s.elements_per_entry == 1; });
  }

  Buffer root_;                 // of the tensors that share
  std::vector<Buffer> states_;  // theirs
};

void declare_trained(ProgramBuilder& pb, const DitJob& job, const BlockWeights& weights,
                     DitIo& io) {
  StateMemory memory;
  const auto add = [&](TrainedTensor t, bool adapter) {
    t.decays = pb.shape(t.value).rank() > 1;
    memory.declare(pb, job.optimizer, t, adapter);
    io.trained.push_back(std::move(t));
  };
  for (const AdapterIo& a : io.adapters) {
    const std::string name = (a.expert == 0 ? "" : "high_noise.") + a.name;
    for (const auto& [suffix, value, gradient] :
         {std::tuple(".lora_A", a.a, a.da), std::tuple(".lora_B", a.b, a.db)}) {
      TrainedTensor t;
      t.name = name + suffix;
      t.expert = a.expert;
      t.value = value;
      t.gradient = gradient;
      if (value == a.b) t.rate = job.lora.up_rate;
      add(std::move(t), true);
    }
  }
  if (job.mode != Mode::full) return;
  std::size_t next = 0;
  for (int group = 0; group < weights.groups(); ++group) {
    for (const WeightBuffers& home : weights.home(pb, group)) {
      const NamedGradient& g = io.gradients[next++];
      const Tier tier = pb.tier(g.gradient);
      TrainedTensor t;
      t.name = g.name;
      t.value = home.data;
      t.gradient = g.gradient;
      const bool narrow = pb.dtype(home.data) != DType::f32;
      if ((narrow && job.optimizer.rounding == UpdateRounding::nearest) ||
          pb.tier(home.data) != tier) {
        t.narrow = home.data;
        t.value = pb.persistent(g.name + ".master", pb.shape(g.gradient), DType::f32,
                                Role::optimizer, tier);
      }
      add(std::move(t), false);
    }
  }
}

// Values, gradient and states of a tensor visit the device together, piece by piece.
void update_in_pieces(ProgramBuilder& pb, const TrainedTensor& t, Buffer factor,
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

// Whether the updates of both are one: b begins where a ends, in every buffer, and an element's
// update depends on the element alone (rounding by chance depends on the tensor's name).
bool joins(ProgramBuilder& pb, const OptimizerOptions& o, const TrainedTensor& a,
           const TrainedTensor& b) {
  const auto behind = [&](Buffer x, Buffer y) {
    const BufferSpec &s = pb.set().spec(x), &t = pb.set().spec(y);
    return s.root == t.root && s.offset + s.bytes == t.offset;
  };
  if (pb.dtype(a.value) != DType::f32 && o.rounding == UpdateRounding::stochastic) return false;
  for (std::size_t i = 0; i < a.states.size(); ++i) {
    if (!behind(a.states[i], b.states[i])) return false;
  }
  return !a.states.empty() && a.rate == b.rate && a.decays == b.decays && !a.narrow && !b.narrow &&
         behind(a.value, b.value) && behind(a.gradient, b.gradient);
}

// The expert's tensors with those that join as one: a GPU takes as long for a small factor as for
// all of a block.
std::vector<TrainedTensor> joined_tensors(ProgramBuilder& pb, const DitJob& job, int expert,
                                          const DitIo& io) {
  std::vector<TrainedTensor> all;
  for (const TrainedTensor& t : io.trained) {
    if (t.expert == expert) all.push_back(t);
  }
  if (job.mode != Mode::lora) return all;
  std::ranges::stable_sort(all, {}, [&](const TrainedTensor& t) {
    const BufferSpec& s = pb.set().spec(t.value);
    return std::pair(s.root.id, s.offset);
  });
  std::vector<TrainedTensor> joined;
  for (std::size_t i = 0; i < all.size();) {
    std::int64_t elements = pb.shape(all[i].value).elements();
    std::size_t end = i + 1;
    while (end < all.size() && pb.tier(all[i].gradient) == Tier::device &&
           joins(pb, job.optimizer, all[end - 1], all[end])) {
      elements += pb.shape(all[end++].value).elements();
    }
    TrainedTensor& t = joined.emplace_back(all[i]);
    if (end > i + 1) {
      const auto join = [&](Buffer& b) { b = pb.view(b, 0, pb.dtype(b), {elements}); };
      join(t.value);
      join(t.gradient);
      for (Buffer& s : t.states) join(s);
    }
    i = end;
  }
  return joined;
}

// factor: min(1, max_norm / norm) over all gradients of the expert.
void record_norm(ProgramBuilder& pb, const DitJob& job, int expert, const DitIo& io,
                 Buffer factor) {
  const Buffer sum = pb.temp("sum", {1}, DType::f64, Role::optimizer);
  ops::fill(pb, sum, 0);
  // Whole buffers: the gradients of a block's adapters are one, and a sum takes as long for a small
  // tensor as for a large one.
  std::vector<Buffer> gradients;
  for (const TrainedTensor& t : io.trained) {
    const Buffer whole = pb.set().spec(t.gradient).root;
    if (t.expert != expert || (!gradients.empty() && gradients.back() == whole)) continue;
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
      const Buffer g = pb.temp("visiting", {count}, DType::f32, Role::gradient);
      ops::copy(pb, pb.view(gradient, static_cast<std::uint64_t>(first) * 4, DType::f32, {count}),
                g, Lane::upload);
      ops::sum_squares(pb, g, sum);
    }
  }
  const Buffer norm = pb.temp("norm", {1}, DType::f32, Role::output);
  ops::clip_factor(pb, sum, job.max_grad_norm, factor, norm);
  ops::copy(pb, norm, io.grad_norm, Lane::download);
}

}  // namespace

void record_update(ProgramSet& set, const DitJob& job, const BlockWeights& weights, int experts,
                   DitIo& io) {
  Buffer factor;
  {
    ProgramBuilder init(set, "init_state");
    declare_trained(init, job, weights, io);
    io.grad_norm = init.persistent("grad_norm", {1}, DType::f32, Role::output, Tier::host);
    factor = init.persistent("clip_factor", {1}, DType::f32, Role::output);
    for (const TrainedTensor& t : io.trained) {
      if (t.narrow) ops::copy(init, t.narrow, t.value, lane_between(init, t.narrow, t.value));
      for (std::size_t s = 0; s < t.states.size(); ++s) {
        const Buffer state = t.states[s];
        if (t.specs[s].starts_as_parameter) {
          ops::copy(init, t.value, state, lane_between(init, t.value, state));
        } else {
          ops::fill(init, state, 0, init.tier(state) == Tier::host ? Lane::host : Lane::compute);
        }
      }
    }
  }
  {
    ProgramBuilder restored(set, "after_restore");
    for (const TrainedTensor& t : io.trained) {
      if (t.narrow)
        ops::copy(restored, t.value, t.narrow, lane_between(restored, t.value, t.narrow));
    }
  }
  for (int e = 0; e < experts; ++e) {
    {
      ProgramBuilder norm(set, expert_program("grad_norm", e));
      record_norm(norm, job, e, io, factor);
    }
    ProgramBuilder pb(set, expert_program("update", e));
    for (const TrainedTensor& t : joined_tensors(pb, job, e, io)) {
      if (pb.tier(t.gradient) == Tier::host) {
        update_in_pieces(pb, t, factor, job.optimizer);
        continue;
      }
      record_optimizer(pb, job.optimizer,
                       {.p = t.value,
                        .g = t.gradient,
                        .factor = factor,
                        .states = t.states,
                        .site = t.name,
                        .first_element = 0,
                        .decays = t.decays,
                        .rate = t.rate});
      if (t.narrow) ops::copy(pb, t.value, t.narrow);
    }
  }
}

}  // namespace ballast::wan
