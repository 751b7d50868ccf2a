#include "nn/optimizer.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/random.h"
#include "nn/batched_updates.h"
#include "ops/adafactor.h"
#include "ops/adamw.h"
#include "ops/adamw_8bit.h"
#include "ops/ema.h"
#include "ops/sgd.h"
#include "ops/stableadamw_scale.h"

namespace ballast {
namespace {

// bitsandbytes keeps the moments of smaller tensors in f32.
constexpr std::int64_t kSmallTensor = 4096;

constexpr std::int64_t kQuantum = ops::kStateBlock;

UpdateRounding rounding_of(const OptimizerOptions& o, DType parameter) {
  if (parameter == DType::f32 || o.kind == OptimizerKind::adamw8bit_kahan) {
    return UpdateRounding::nearest;
  }
  if (is_optimi(o.kind) && o.kahan_unasked && o.rounding == UpdateRounding::nearest) {
    return UpdateRounding::kahan;
  }
  return o.rounding;
}

// The states of a step, taken one after the other in the order of state_specs().
class States {
 public:
  explicit States(std::span<const Buffer> all) : all_(all) {}
  Buffer next() {
    check(at_ < all_.size(), "an optimizer step was given {} states, it has more", all_.size());
    return all_[at_++];
  }
  Buffer next_if(bool condition) { return condition ? next() : Buffer{}; }
  void finish() const {
    check(at_ == all_.size(), "an optimizer step was given {} states, it has {}", all_.size(), at_);
  }

 private:
  std::span<const Buffer> all_;
  std::size_t at_ = 0;
};

ops::AdamWOptions adamw_options(const OptimizerOptions& o, const OptimizerStep& s) {
  return {.beta1 = o.beta1,
          .beta2 = o.beta2,
          .eps = o.eps,
          .weight_decay = s.decays ? o.weight_decay : 0,
          .debias = is_optimi(o.kind) ? ops::Debias::betas : ops::Debias::moments,
          .rate = s.rate};
}

ops::AdamWBuffers adamw_buffers(ProgramBuilder& pb, const OptimizerOptions& o,
                                const OptimizerStep& s, States& states,
                                ops::RecordedRounding rounding) {
  const Buffer m = states.next(), v = states.next();
  rounding.carry = states.next_if(rounding.rounding == UpdateRounding::kahan);
  ops::AdamWBuffers t = {
      .p = s.p, .m = m, .v = v, .g = s.g, .options = adamw_options(o, s), .rounding = rounding};
  if (o.kind == OptimizerKind::stableadamw) {
    check(s.first_element == 0, "{}: StableAdamW updates whole tensors", s.site);
    t.rates = ops::stableadamw_scale(pb, {.v = v, .g = s.g, .grad_scale = s.factor}, t.options);
  }
  return t;
}

ops::AdamW8bitBuffers adamw_8bit_buffers(const ProgramBuilder& pb, const OptimizerOptions& o,
                                         const OptimizerStep& s, States& states,
                                         ops::RecordedRounding rounding) {
  ops::AdamW8bitBuffers on = {.p = s.p, .g = s.g, .options = adamw_options(o, s)};
  on.m = states.next();
  const bool codes = pb.dtype(on.m) == DType::u8;  // else its moments have 32 bits
  on.m_absmax = states.next_if(codes);
  on.v = states.next();
  on.v_absmax = states.next_if(codes);
  on.shift = states.next_if(o.kind == OptimizerKind::adamw8bit_kahan);
  rounding.carry = states.next_if(rounding.rounding == UpdateRounding::kahan);
  on.rounding = rounding;
  return on;
}

bool is_stabilized(const OptimizerOptions& o) {
  return o.stabilize && o.kind == OptimizerKind::adamw8bit_kahan;
}

void record_8bit(ProgramBuilder& pb, const OptimizerOptions& o, const OptimizerStep& s,
                 States& states, ops::RecordedRounding rounding) {
  const bool stabilize = is_stabilized(o);
  check(!stabilize || s.first_element == 0, "{}: only the whole tensor can be stabilized", s.site);
  ops::adamw_8bit(pb, {adamw_8bit_buffers(pb, o, s, states, rounding)}, s.factor, stabilize);
}

void record_adafactor(ProgramBuilder& pb, const OptimizerOptions& o, const OptimizerStep& s,
                      States& states, ops::RecordedRounding rounding) {
  check(s.first_element == 0, "{}: Adafactor updates whole tensors", s.site);
  const bool matrix = pb.shape(s.p).rank() >= 2;
  ops::AdafactorBuffers on = {.p = s.p, .g = s.g, .grad_scale = s.factor};
  on.row = states.next_if(matrix);
  on.column = states.next_if(matrix);
  on.v = states.next_if(!matrix);
  rounding.carry = states.next_if(rounding.rounding == UpdateRounding::kahan);
  ops::adafactor(pb, on,
                 {.eps_rows = o.eps_rows,
                  .eps_scale = o.eps_scale,
                  .clip_threshold = o.clip_threshold,
                  .decay_rate = o.decay_rate,
                  .weight_decay = s.decays ? o.weight_decay : 0,
                  .scale_parameter = o.scale_parameter,
                  .relative_step = o.relative_step,
                  .warmup_init = o.warmup_init},
                 rounding);
}

void record_sgd(ProgramBuilder& pb, const OptimizerOptions& o, const OptimizerStep& s,
                States& states, ops::RecordedRounding rounding) {
  const Buffer momentum = states.next_if(o.momentum != 0);
  rounding.carry = states.next_if(rounding.rounding == UpdateRounding::kahan);
  ops::sgd(pb, s.p, momentum, s.g, s.factor,
           {.momentum = o.momentum, .weight_decay = s.decays ? o.weight_decay : 0}, rounding);
}

}  // namespace

bool is_8bit(OptimizerKind k) {
  return k == OptimizerKind::adamw8bit || k == OptimizerKind::adamw8bit_kahan;
}

std::vector<StateSpec> state_specs(const OptimizerOptions& o, const Shape& shape, DType parameter,
                                   MomentBits bits) {
  std::vector<StateSpec> all;
  const auto add = [&](const char* suffix, DType dtype) {
    all.push_back({.suffix = suffix, .shape = shape, .dtype = dtype});
  };
  const auto add_moment = [&](const std::string& suffix) {
    const std::int64_t n = shape.elements();
    if (n < kSmallTensor || bits == MomentBits::always_32) {
      add(suffix.c_str(), DType::f32);
      return;
    }
    all.push_back({.suffix = suffix, .shape = {n}, .dtype = DType::u8});
    all.push_back({.suffix = suffix + ".absmax",
                   .shape = {(n + ops::kStateBlock - 1) / ops::kStateBlock},
                   .elements_per_entry = ops::kStateBlock});
  };
  switch (o.kind) {
    case OptimizerKind::adamw:
      add(".m", o.state_dtype);
      add(".v", o.state_dtype);
      break;
    case OptimizerKind::adamw_optimi:
    case OptimizerKind::stableadamw:
      add(".m", parameter);
      add(".v", parameter);
      break;
    case OptimizerKind::adamw8bit:
    case OptimizerKind::adamw8bit_kahan:
      add_moment(".m");
      add_moment(".v");
      break;
    case OptimizerKind::adafactor:
      if (shape.rank() < 2) {
        add(".v", DType::f32);
      } else {
        Shape rows, columns;
        for (int i = 0; i + 1 < shape.rank(); ++i) rows.push_back(shape[i]);
        for (int i = 0; i + 2 < shape.rank(); ++i) columns.push_back(shape[i]);
        columns.push_back(shape.back());
        all.push_back({.suffix = ".row", .shape = rows, .elements_per_entry = 0});
        all.push_back({.suffix = ".column", .shape = columns, .elements_per_entry = 0});
      }
      break;
    case OptimizerKind::sgd:
      if (o.momentum != 0) add(".momentum", o.state_dtype);
      break;
  }
  if (o.kind == OptimizerKind::adamw8bit_kahan ||
      rounding_of(o, parameter) == UpdateRounding::kahan) {
    add(".kahan", parameter);
  }
  if (o.ema_decay) {
    add(".ema", DType::f32);
    all.back().starts_as_parameter = true;
  }
  return all;
}

bool has_rate(OptimizerKind k) { return k != OptimizerKind::adafactor && k != OptimizerKind::sgd; }

std::optional<std::int64_t> update_quantum(const OptimizerOptions& o) {
  if (o.kind == OptimizerKind::adafactor || o.kind == OptimizerKind::stableadamw) {
    return std::nullopt;
  }
  if (is_stabilized(o)) return std::nullopt;
  return kQuantum;
}

Buffer cut_state(ProgramBuilder& pb, const StateSpec& spec, Buffer state, std::int64_t first,
                 std::int64_t count) {
  const std::int64_t per = spec.elements_per_entry;
  const std::int64_t entries = pb.shape(state).elements();
  if (per == 0) {
    check(first == 0, "the state {} cannot be cut", spec.suffix);
    return pb.reshape(state, {entries});
  }
  check(first >= 0 && count >= 0 && first % per == 0, "elements {}+{} of the state {}", first,
        count, spec.suffix);
  const std::int64_t begin = first / per, length = (count + per - 1) / per;
  check(begin + length <= entries && (count % per == 0 || begin + length == entries),
        "elements {}+{} of the state {} with {} entries", first, count, spec.suffix, entries);
  return pb.view(state, static_cast<std::uint64_t>(begin) * size_of(pb.dtype(state)),
                 pb.dtype(state), {length});
}

namespace {

ops::RecordedRounding recorded_rounding(const ProgramBuilder& pb, const OptimizerOptions& o,
                                        const OptimizerStep& step) {
  return {.rounding = rounding_of(o, pb.dtype(step.p)),
          .site = fold(hash_of(step.site)),
          .first_element = step.first_element};
}

// Puts a tensor to those of its types.
template <class T>
void add_to_group(const ProgramBuilder& pb, std::vector<std::vector<T>>& groups, const T& t) {
  const auto found = std::ranges::find_if(groups, [&](const auto& group) {
    const T& o = group.front();
    return pb.dtype(o.p) == pb.dtype(t.p) && pb.dtype(o.m) == pb.dtype(t.m) &&
           pb.dtype(o.g) == pb.dtype(t.g) && o.rounding.rounding == t.rounding.rounding;
  });
  if (found != groups.end()) {
    found->push_back(t);
  } else {
    groups.push_back({t});
  }
}

}  // namespace

bool BatchedUpdates::can_wait() const {
  return options_.kind != OptimizerKind::adafactor && options_.kind != OptimizerKind::sgd &&
         !is_stabilized(options_) && !options_.ema_decay;
}

void BatchedUpdates::add(const OptimizerStep& step) {
  if (!can_wait()) return record_optimizer(pb_, options_, step);
  check(step.rate == 1 || has_rate(options_.kind), "{} has one learning rate",
        name_of(options_.kind));
  factor_ = step.factor;
  States states(step.states);
  const ops::RecordedRounding rounding = recorded_rounding(pb_, options_, step);
  if (is_8bit(options_.kind)) {
    add_to_group(pb_, groups_8bit_, adamw_8bit_buffers(pb_, options_, step, states, rounding));
  } else {
    add_to_group(pb_, groups_, adamw_buffers(pb_, options_, step, states, rounding));
  }
  states.finish();
}

void BatchedUpdates::flush() {
  for (auto& group : groups_) ops::adamw(pb_, std::move(group), factor_);
  for (auto& group : groups_8bit_) ops::adamw_8bit(pb_, std::move(group), factor_);
  groups_.clear();
  groups_8bit_.clear();
}

void record_optimizer(ProgramBuilder& pb, const OptimizerOptions& o, const OptimizerStep& step) {
  const ops::RecordedRounding rounding = recorded_rounding(pb, o, step);
  check(step.first_element % kQuantum == 0, "{} is cut at element {}, not a multiple of {}",
        step.site, step.first_element, kQuantum);
  check(step.rate == 1 || has_rate(o.kind), "{} has one learning rate", name_of(o.kind));
  States states(step.states);
  if (is_8bit(o.kind)) {
    record_8bit(pb, o, step, states, rounding);
  } else if (o.kind == OptimizerKind::adafactor) {
    record_adafactor(pb, o, step, states, rounding);
  } else if (o.kind == OptimizerKind::sgd) {
    record_sgd(pb, o, step, states, rounding);
  } else {
    ops::adamw(pb, {adamw_buffers(pb, o, step, states, rounding)}, step.factor);
  }
  if (o.ema_decay) ops::ema(pb, step.p, states.next(), *o.ema_decay);
  states.finish();
}

}  // namespace ballast
