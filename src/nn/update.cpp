#include "nn/update.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/error.h"
#include "nn/batched_updates.h"
#include "nn/scratch_state.h"
#include "ops/copy.h"
#include "ops/fill.h"
#include "ops/global_norm.h"
#include "ops/kernels/ordered_sum.h"

namespace ballast {
namespace {

// Elements of a tensor that visit the device together: 32 MiB of each f32 array.
constexpr std::int64_t kPieceElements = 8 << 20;
static_assert(kPieceElements % ops::kSumGroup == 0, "the norm has the same bits in pieces");

Lane lane_between(const ProgramBuilder& pb, Buffer from, Buffer to) {
  if (pb.tier(from) != pb.tier(to)) {
    return pb.tier(to) == Tier::device ? Lane::upload : Lane::download;
  }
  return pb.tier(to) == Tier::host ? Lane::host : Lane::compute;
}

// As few pieces as can be, and as long as each other: a short one would wait for a long one to go.
// They begin at whole blocks of a disk, of magnitudes as well, four bytes for 256 elements.
std::int64_t even_piece(std::int64_t total, std::int64_t quantum) {
  const auto up = [](std::int64_t n, std::int64_t by) { return (n + by - 1) / by; };
  const std::int64_t step = up(1 << 18, quantum) * quantum;
  const std::int64_t most = std::max<std::int64_t>(1, kPieceElements / step) * step;
  const std::int64_t pieces = std::max<std::int64_t>(1, up(total, most));
  return std::max<std::int64_t>(1, up(up(total, pieces), step)) * step;
}

// f(first, count) of every piece of a tensor.
template <class F>
void each_piece_of(std::int64_t total, std::int64_t piece, F&& f) {
  for (std::int64_t first = 0; first < total; first += piece) {
    f(first, std::min(piece, total - first));
  }
}

// Values, gradient and states of a tensor visit the device together, piece by piece. A piece comes
// while the one before is updated and goes, so that both ways of the link are used at once, and the
// disk is read meanwhile: it has a place of its own. Whole tensors, which statistics by row and
// column need, may be large: in memory they come when the one before has gone.
class VisitingUpdates {
 public:
  VisitingUpdates(ProgramBuilder& pb, Buffer factor, const OptimizerOptions& options,
                  StagingRing* ring)
      : pb_(pb), factor_(factor), options_(options), ring_(ring) {}

  void update(const UpdatedTensor& t) {
    const std::int64_t total = pb_.shape(t.value).elements();
    const auto quantum = update_quantum(options_);
    const std::int64_t piece = quantum ? even_piece(total, *quantum) : total;
    each_piece_of(total, piece, [&](std::int64_t first, std::int64_t count) {
      const bool beside = quantum || t.state_on_disk;
      if (!beside) finish();
      Visit visit = arrive(t, first, count);
      finish();
      waiting_ = std::move(visit);
    });
  }

  void finish() {
    if (waiting_) work(*waiting_);
    waiting_.reset();
  }

 private:
  struct Place {
    Buffer persistent, here;  // the same where it lies on the device
  };
  struct Visit {
    const UpdatedTensor* tensor = nullptr;
    std::int64_t first = 0, count = 0;
    Place value, gradient;
    std::vector<Place> states;
  };

  // Whole tensors keep their shape: statistics by row and column need it.
  Buffer cut(Buffer b, std::int64_t first, std::int64_t count) {
    return count == pb_.shape(b).elements() ? b : flat_cut(pb_, b, first, count);
  }

  Place come(Buffer persistent) {
    if (pb_.tier(persistent) == Tier::device) return {persistent, persistent};
    const Buffer here =
        pb_.temp("visiting", pb_.shape(persistent), pb_.dtype(persistent), Role::optimizer);
    if (pb_.tier(persistent) == Tier::disk) {
      read_scratch(pb_, *ring_, persistent, here);
    } else {
      ops::copy(pb_, persistent, here, Lane::upload);
    }
    return {persistent, here};
  }

  void go(const Place& p) {
    if (p.persistent == p.here) return;
    if (pb_.tier(p.persistent) == Tier::disk) {
      write_scratch(pb_, *ring_, p.here, p.persistent);
    } else {
      ops::copy(pb_, p.here, p.persistent, Lane::download);
    }
  }

  Visit arrive(const UpdatedTensor& t, std::int64_t first, std::int64_t count) {
    Visit v = {
        .tensor = &t, .first = first, .count = count, .value = {}, .gradient = {}, .states = {}};
    const bool whole = count == pb_.shape(t.value).elements();
    v.value = come(cut(t.value, first, count));
    for (std::size_t s = 0; s < t.states.size(); ++s) {
      v.states.push_back(
          come(whole ? t.states[s] : cut_state(pb_, t.specs[s], t.states[s], first, count)));
    }
    v.gradient = come(cut(t.gradient, first, count));
    return v;
  }

  void work(const Visit& v) {
    const UpdatedTensor& t = *v.tensor;
    std::vector<Buffer> states;
    for (const Place& s : v.states) states.push_back(s.here);
    record_optimizer(pb_, options_,
                     {.p = v.value.here,
                      .g = v.gradient.here,
                      .factor = factor_,
                      .states = states,
                      .site = t.name,
                      .first_element = v.first,
                      .decays = t.decays,
                      .rate = t.rate});
    go(v.value);
    for (const Place& s : v.states) go(s);
    if (!t.narrow) return;
    const Buffer narrow = cut(t.narrow, v.first, v.count);
    ops::copy(pb_, v.value.here, narrow,
              pb_.tier(narrow) == Tier::device ? Lane::compute : Lane::download);
  }

  ProgramBuilder& pb_;
  Buffer factor_;
  const OptimizerOptions& options_;
  StagingRing* ring_;
  std::optional<Visit> waiting_;  // there, not updated yet
};

// A master on disk takes the weights' values, an average as well; all else begins at zero.
void begin_on_disk(ProgramBuilder& pb, const UpdatedTensor& t, StagingRing& ring) {
  const bool averaged = std::ranges::any_of(t.specs, &StateSpec::starts_as_parameter);
  const Buffer from = t.narrow ? t.narrow : t.value;
  const std::int64_t total = t.narrow || averaged ? pb.shape(from).elements() : 0;
  each_piece_of(total, kPieceElements, [&](std::int64_t first, std::int64_t count) {
    const Buffer here = pb.temp("visiting", {count}, DType::f32, Role::optimizer);
    ops::copy(pb, flat_cut(pb, from, first, count), here, lane_between(pb, from, here));
    if (t.narrow) write_scratch(pb, ring, here, flat_cut(pb, t.value, first, count));
    for (std::size_t s = 0; s < t.states.size(); ++s) {
      if (!t.specs[s].starts_as_parameter) continue;
      write_scratch(pb, ring, here, flat_cut(pb, t.states[s], first, count));
    }
  });
  for (std::size_t s = 0; s < t.states.size(); ++s) {
    if (!t.specs[s].starts_as_parameter) zero_scratch(pb, t.states[s]);
  }
}

void narrow_from_disk(ProgramBuilder& pb, const UpdatedTensor& t, StagingRing& ring) {
  const std::int64_t total = pb.shape(t.value).elements();
  each_piece_of(total, kPieceElements, [&](std::int64_t first, std::int64_t count) {
    const Buffer here = pb.temp("visiting", {count}, pb.dtype(t.value), Role::optimizer);
    read_scratch(pb, ring, flat_cut(pb, t.value, first, count), here);
    const Buffer narrow = flat_cut(pb, t.narrow, first, count);
    ops::copy(pb, here, narrow, lane_between(pb, here, narrow));
  });
}

// The norm of buffers on the device or in host memory; see record_gradient_norm.
void record_norm(ProgramBuilder& pb, std::span<const Buffer> all, Role role, double max_norm,
                 Buffer factor, Buffer norm) {
  const Buffer sum = pb.temp("sum", {1}, DType::f64, Role::optimizer);
  const Buffer scratch = ops::sum_squares_scratch(pb, sum);
  ops::fill(pb, sum, 0);
  std::vector<Buffer> here_already;
  const auto add_those = [&] {
    ops::sum_squares(pb, here_already, sum, scratch);
    here_already.clear();
  };
  for (const Buffer b : all) {
    if (pb.tier(b) == Tier::device) {
      here_already.push_back(b);
      continue;
    }
    add_those();
    // Those in host memory visit the device once more.
    each_piece_of(pb.shape(b).elements(), kPieceElements,
                  [&](std::int64_t first, std::int64_t count) {
                    const Buffer here = pb.temp("visiting", {count}, pb.dtype(b), role);
                    ops::copy(pb, flat_cut(pb, b, first, count), here, Lane::upload);
                    ops::sum_squares(pb, here, sum, scratch);
                  });
  }
  add_those();
  const Buffer here = pb.temp("norm", {1}, DType::f32, Role::output);
  ops::clip_factor(pb, sum, max_norm, factor, here);
  ops::copy(pb, here, norm, Lane::download);
}

}  // namespace

Buffer flat_cut(ProgramBuilder& pb, Buffer b, std::int64_t first, std::int64_t count) {
  const DType dtype = pb.dtype(b);
  return pb.view(b, static_cast<std::uint64_t>(first) * size_of(dtype), dtype, {count});
}

void declare_states(ProgramBuilder& pb, const OptimizerOptions& options, UpdatedTensor& t) {
  t.specs = state_specs(options, pb.shape(t.value), pb.dtype(t.value), t.moment_bits);
  for (const StateSpec& s : t.specs) {
    t.states.push_back(persistent_state(pb, t.name + s.suffix, s.shape, s.dtype, t.state_tier(pb)));
  }
}

void record_initial_state(ProgramBuilder& pb, std::span<const UpdatedTensor> tensors,
                          StagingRing* ring) {
  for (const UpdatedTensor& t : tensors) {
    if (t.state_on_disk) {
      begin_on_disk(pb, t, *ring);
      continue;
    }
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

void record_restored(ProgramBuilder& pb, std::span<const UpdatedTensor> tensors,
                     StagingRing* ring) {
  for (const UpdatedTensor& t : tensors) {
    if (!t.narrow) continue;
    if (t.state_on_disk) {
      narrow_from_disk(pb, t, *ring);
      continue;
    }
    ops::copy(pb, t.value, t.narrow, lane_between(pb, t.value, t.narrow));
  }
}

void record_gradient_norm(ProgramBuilder& pb, std::span<const UpdatedTensor> tensors,
                          double max_norm, Buffer factor, Buffer norm) {
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
  record_norm(pb, gradients, Role::gradient, max_norm, factor, norm);
}

void record_value_norm(ProgramBuilder& pb, std::span<const UpdatedTensor> tensors, Buffer factor,
                       Buffer norm) {
  std::vector<Buffer> values;
  for (const UpdatedTensor& t : tensors) {
    values.push_back(pb.tier(t.value) == Tier::disk ? t.narrow : t.value);
  }
  record_norm(pb, values, Role::optimizer, 0, factor, norm);
}

void record_update(ProgramBuilder& pb, std::span<const UpdatedTensor> tensors, Buffer factor,
                   const OptimizerOptions& options, StagingRing* ring) {
  VisitingUpdates visiting(pb, factor, options, ring);
  BatchedUpdates together(pb, options);
  std::vector<const UpdatedTensor*> added;
  const auto finish = [&] {
    together.flush();
    for (const UpdatedTensor* t : added) {
      if (t->narrow) ops::copy(pb, t->value, t->narrow, lane_between(pb, t->value, t->narrow));
    }
    added.clear();
  };
  for (const UpdatedTensor& t : tensors) {
    if (t.state_tier(pb) != Tier::device) {
      visiting.update(t);
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
    if (!together.can_wait() || added.size() == BatchedUpdates::kMax) finish();
  }
  visiting.finish();
  finish();
}

}  // namespace ballast
