#include "models/wan/dit_update.h"

#include "core/error.h"
#include "nn/update.h"

namespace ballast::wan {
namespace {

UpdatedTensor updated(const TrainedTensor& t) {
  return {.name = t.name,
          .value = t.value,
          .narrow = t.narrow,
          .gradient = t.gradient,
          .specs = t.specs,
          .states = t.states,
          .decays = t.decays,
          .rate = t.rate};
}

std::vector<UpdatedTensor> of_expert(const DitIo& io, int expert) {
  std::vector<UpdatedTensor> all;
  for (const TrainedTensor& t : io.trained) {
    if (t.expert == expert) all.push_back(updated(t));
  }
  return all;
}

void declare_trained(ProgramBuilder& pb, const DitJob& job, const BlockWeights& weights,
                     DitIo& io) {
  const auto add = [&](TrainedTensor t) {
    t.decays = pb.shape(t.value).rank() > 1;
    UpdatedTensor u = updated(t);
    declare_states(pb, job.optimizer, u);
    t.specs = std::move(u.specs);
    t.states = std::move(u.states);
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
      add(std::move(t));
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
      add(std::move(t));
    }
  }
}

}  // namespace

void record_update(ProgramSet& set, const DitJob& job, const BlockWeights& weights, int experts,
                   DitIo& io) {
  Buffer factor;
  std::vector<UpdatedTensor> all;
  {
    ProgramBuilder init(set, "init_state");
    declare_trained(init, job, weights, io);
    io.grad_norm = init.persistent("grad_norm", {1}, DType::f32, Role::output, Tier::host);
    factor = init.persistent("clip_factor", {1}, DType::f32, Role::output);
    for (const TrainedTensor& t : io.trained) all.push_back(updated(t));
    record_initial_state(init, all);
  }
  {
    ProgramBuilder restored(set, "after_restore");
    record_restored(restored, all);
  }
  for (int e = 0; e < experts; ++e) {
    const std::vector<UpdatedTensor> own = of_expert(io, e);
    {
      ProgramBuilder norm(set, expert_program("grad_norm", e));
      record_gradient_norm(norm, own, job.max_grad_norm, factor, io.grad_norm);
    }
    ProgramBuilder pb(set, expert_program("update", e));
    ballast::record_update(pb, own, factor, job.optimizer);
  }
}

}  // namespace ballast::wan
