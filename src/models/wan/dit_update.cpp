#include "models/wan/dit_update.h"

#include <algorithm>
#include <iterator>

#include "core/error.h"
#include "core/to_size.h"
#include "nn/scratch_state.h"
#include "nn/update.h"
#include "ops/global_norm.h"

namespace ballast::wan {
namespace {

std::vector<UpdatedTensor> of_expert(const DitIo& io, int expert) {
  std::vector<UpdatedTensor> all;
  std::ranges::copy_if(io.trained, std::back_inserter(all),
                       [=](const UpdatedTensor& t) { return t.expert == expert; });
  return all;
}

// The factors of a block's adapters are parts of one buffer; so are their states, where every
// element has its own and they are in memory.
class StateMemory {
 public:
  void declare(ProgramBuilder& pb, const OptimizerOptions& options, UpdatedTensor& t,
               bool adapter) {
    t.specs = state_specs(options, pb.shape(t.value), pb.dtype(t.value));
    if (!adapter || t.state_on_disk || !one_state_per_element(options, t.specs)) {
      declare_states(pb, options, t);
      return;
    }
    const BufferSpec value = pb.set().spec(t.value);
    for (std::size_t i = 0; i < t.specs.size(); ++i) {
      const StateSpec& s = t.specs[i];
      if (value.root != root_) states_.clear(), root_ = value.root;
      if (states_.size() <= i) {
        states_.push_back(pb.persistent(fmt::format("{}{}", pb.set().name(value.root), s.suffix),
                                        pb.shape(value.root), s.dtype, Role::optimizer,
                                        pb.tier(t.gradient)));
      }
      t.states.push_back(pb.view(states_[i], value.offset / size_of(value.dtype) * size_of(s.dtype),
                                 s.dtype, s.shape));
    }
  }

 private:
  static bool one_state_per_element(const OptimizerOptions& o,
                                    const std::vector<StateSpec>& specs) {
    if (o.kind != OptimizerKind::adamw && o.kind != OptimizerKind::adamw_optimi &&
        o.kind != OptimizerKind::stableadamw) {
      return false;
    }
    return std::ranges::all_of(specs, [](const StateSpec& s) { return s.elements_per_entry == 1; });
  }

  Buffer root_;                 // of the tensors that share
  std::vector<Buffer> states_;  // theirs
};

// State of groups that stay goes first: it makes room for more of them, and every one of those for
// state of others in host memory.
std::vector<bool> groups_on_disk(const MemoryPolicy& policy, const BlockWeights& weights) {
  const int groups = weights.groups();
  int resident = 0;
  for (int g = 0; g < groups; ++g) resident += weights.resident(g);
  const int wanted = std::min(policy.disk_state_groups, groups);
  const int of_resident = std::min(wanted, resident);
  std::vector<bool> all;
  int resident_before = 0, streaming = 0;  // groups before this one
  for (int g = 0; g < groups; ++g) {
    all.push_back(weights.resident(g)
                      ? evenly_chosen(resident_before++, resident, of_resident)
                      : evenly_chosen(streaming++, groups - resident, wanted - of_resident));
  }
  return all;
}

void declare_trained(ProgramBuilder& pb, const DitJob& job, const BlockWeights& weights,
                     DitIo& io) {
  StateMemory memory;
  const std::vector<bool> on_disk = groups_on_disk(job.policy, weights);
  const auto add = [&](UpdatedTensor t, bool adapter) {
    t.decays = pb.shape(t.value).rank() > 1;
    memory.declare(pb, job.optimizer, t, adapter);
    io.trained.push_back(std::move(t));
  };
  for (const AdapterIo& a : io.adapters) {
    const std::string name = set_prefix(job, a.expert) + a.name;
    for (const auto& [suffix, value, gradient] :
         {std::tuple(".lora_A", a.a, a.da), std::tuple(".lora_B", a.b, a.db)}) {
      UpdatedTensor t;
      t.name = name + suffix;
      t.expert = a.expert;
      t.value = value;
      t.gradient = gradient;
      if (value == a.b) t.rate = job.lora.up_rate;
      t.state_on_disk = on_disk[to_size(block_group(block_of(a)))];
      add(std::move(t), true);
    }
  }
  if (job.mode != Mode::full) return;
  std::size_t next = 0;
  for (int group = 0; group < weights.groups(); ++group) {
    for (const WeightBuffers& persistent : weights.persistent(pb, group)) {
      const NamedGradient& g = io.gradients[next++];
      const Tier tier = pb.tier(g.gradient);
      UpdatedTensor t;
      t.name = g.name;
      t.value = persistent.data;
      t.gradient = g.gradient;
      t.state_on_disk = on_disk[to_size(group)];
      const bool narrow = pb.dtype(persistent.data) != DType::f32;
      if ((narrow && job.optimizer.rounding == UpdateRounding::nearest) ||
          pb.tier(persistent.data) != tier) {
        t.narrow = persistent.data;
        t.value = persistent_state(pb, g.name + ".master", pb.shape(g.gradient), DType::f32,
                                   t.state_on_disk ? Tier::disk : tier);
      }
      add(std::move(t), false);
    }
  }
}

// Whether the updates of both are one: b begins where a ends, in every buffer, and an element's
// update depends on the element alone (rounding by chance depends on the tensor's name).
bool joins(ProgramBuilder& pb, const OptimizerOptions& o, const UpdatedTensor& a,
           const UpdatedTensor& b) {
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
std::vector<UpdatedTensor> joined_tensors(ProgramBuilder& pb, const DitJob& job,
                                          std::vector<UpdatedTensor> all) {
  if (job.mode != Mode::lora) return all;
  std::ranges::stable_sort(all, {}, [&](const UpdatedTensor& t) {
    const BufferSpec& s = pb.set().spec(t.value);
    return std::pair(s.root.id, s.offset);
  });
  std::vector<UpdatedTensor> joined;
  for (std::size_t i = 0; i < all.size();) {
    std::int64_t elements = pb.shape(all[i].value).elements();
    std::size_t end = i + 1;
    while (end < all.size() && pb.tier(all[i].gradient) == Tier::device &&
           joins(pb, job.optimizer, all[end - 1], all[end])) {
      elements += pb.shape(all[end++].value).elements();
    }
    UpdatedTensor& t = joined.emplace_back(all[i]);
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

// Factors lie on the device under every policy: whole pairs, whatever visited it for the update.
void limit_adapters(ProgramBuilder& pb, const DitJob& job, const DitIo& io, int expert) {
  if (job.lora.max_norm <= 0) return;
  for (const AdapterIo& a : io.adapters) {
    if (a.expert == expert) ops::limit_norm(pb, a.a, a.b, job.lora.scale(), job.lora.max_norm);
  }
}

}  // namespace

void record_update(ProgramSet& set, const DitJob& job, BlockWeights& weights, int sets, DitIo& io) {
  Buffer& factor = io.clip_factor;
  const std::vector<UpdatedTensor>& all = io.trained;
  {
    ProgramBuilder init(set, "init_state");
    declare_trained(init, job, weights, io);
    io.grad_norm = init.persistent("grad_norm", {1}, DType::f32, Role::output, Tier::host);
    factor = init.persistent("clip_factor", {1}, DType::f32, Role::output);
    record_initial_state(init, all, &weights.ring());
  }
  {
    ProgramBuilder restored(set, "after_restore");
    record_restored(restored, all, &weights.ring());
  }
  {
    ProgramBuilder values(set, kValueNorm);
    record_value_norm(values, all, factor, io.grad_norm);
  }
  for (int e = 0; e < sets; ++e) {
    const std::vector<UpdatedTensor> own = of_expert(io, e);
    {
      ProgramBuilder norm(set, set_program(job, "grad_norm", e));
      record_gradient_norm(norm, own, job.max_grad_norm, factor, io.grad_norm);
    }
    ProgramBuilder pb(set, set_program(job, "update", e));
    ballast::record_update(pb, joined_tensors(pb, job, own), factor, job.optimizer,
                           &weights.ring());
    limit_adapters(pb, job, io, e);
  }
}

}  // namespace ballast::wan
