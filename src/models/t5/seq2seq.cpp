#include "models/t5/seq2seq.h"

#include <algorithm>

#include "core/error.h"
#include "models/t5/seq2seq_pass.h"

namespace ballast::t5 {
namespace {

void check_trainable(const std::vector<WeightGroup>& groups) {
  for (const WeightGroup& g : groups) {
    for (const StoredTensor& t : g.tensors) {
      if (size_of(t.data.dtype) >= 2) continue;
      fail(ErrorCode::input,
           fmt::format("{} is {}; weights that train have 16 bits or more", t.name, t.data.dtype),
           {{"use the bf16 or f32 file", "small updates are lost in 8 bits"}});
    }
  }
}

}  // namespace

Seq2Seq::Seq2Seq(ProgramSet& set, Seq2SeqJob job, std::vector<WeightGroup> groups)
    : job_(std::move(job)) {
  validate(job_.config);
  check(job_.config.decoder_layers > 0, "{} has no decoder", job_.config.name);
  check(static_cast<int>(groups.size()) == group_count(job_.config),
        "{} weight groups for a model that has {}", groups.size(), group_count(job_.config));
  check(!job_.batches.empty(), "there is at least one kind of step");
  if (job_.trains) check_trainable(groups);
  // Weights that change cannot be streamed from the user's file.
  if (job_.trains) job_.policy.home = WeightHome::host;
  {
    ProgramBuilder load(set, "load");
    weights_.emplace(load, std::vector<std::vector<WeightGroup>>{std::move(groups)}, job_.policy,
                     job_.format);
    declare_io(load);
    declare_gradients(load);
    weights_->load(load, 0);
  }
  for (const StepIo& step : io_.steps) {
    ProgramBuilder pb(set, step.program);
    Seq2SeqPass(job_, *weights_, gradients_, step, io_.label_weight).record(pb);
  }
  if (job_.trains && job_.record_update) record_updates(set);
}

// The i-th samples of all kinds of steps lie in the same memory, as large as the longest.
void Seq2Seq::declare_io(ProgramBuilder& pb) {
  std::vector<PairLength> longest;
  for (const auto& batch : job_.batches) {
    check(!batch.empty(), "a batch has at least one sample");
    longest.resize(std::max(longest.size(), batch.size()));
    for (std::size_t i = 0; i < batch.size(); ++i) {
      check(batch[i].source > 0 && batch[i].target > 0, "a sample of {} and {} tokens",
            batch[i].source, batch[i].target);
      longest[i].source = std::max(longest[i].source, batch[i].source);
      longest[i].target = std::max(longest[i].target, batch[i].target);
    }
  }
  const auto host = [&](const char* name, const Shape& shape, DType dtype, Role role) {
    return pb.persistent(name, shape, dtype, role, Tier::host);
  };
  std::vector<PairIo> slots;
  for (const PairLength& n : longest) {
    PairIo& s = slots.emplace_back();
    s.source = host("source", {n.source}, DType::i32, Role::input);
    s.decoder_input = host("decoder_input", {n.target}, DType::i32, Role::input);
    s.labels = host("labels", {n.target}, DType::i32, Role::input);
    s.losses = host("losses", {n.target}, DType::f32, Role::output);
    if (job_.keep_states) {
      s.states = host("states", {n.source, job_.config.d_model}, DType::f32, Role::output);
    }
    if (job_.keep_logits) {
      s.logits = host("logits", {n.target, job_.config.vocabulary}, DType::f32, Role::output);
    }
  }
  io_.label_weight = host("label_weight", {1}, DType::f32, Role::input);
  for (std::size_t k = 0; k < job_.batches.size(); ++k) {
    StepIo& step = io_.steps.emplace_back();
    step.program = k == 0 ? "step" : fmt::format("step.{}", k);
    for (std::size_t i = 0; i < job_.batches[k].size(); ++i) {
      const PairLength n = job_.batches[k][i];
      const PairIo& s = slots[i];
      const auto part = [&](Buffer b, std::int64_t rows) {
        return b ? pb.rows(b, 0, rows) : Buffer();
      };
      step.samples.push_back({.source = part(s.source, n.source),
                              .decoder_input = part(s.decoder_input, n.target),
                              .labels = part(s.labels, n.target),
                              .losses = part(s.losses, n.target),
                              .states = part(s.states, n.source),
                              .logits = part(s.logits, n.target)});
    }
  }
}

// Where the weights are between steps: with those that stream, in host memory.
void Seq2Seq::declare_gradients(ProgramBuilder& pb) {
  if (!job_.trains) return;
  gradients_.resize(static_cast<std::size_t>(weights_->groups()));
  for (int g = 0; g < weights_->groups(); ++g) {
    const Tier tier = weights_->resident(g) ? Tier::device : Tier::host;
    for (const StoredTensor& t : weights_->group(g).tensors) {
      const Buffer b =
          pb.persistent(t.name + ".grad", t.data.shape, DType::f32, Role::gradient, tier);
      gradients_[static_cast<std::size_t>(g)].home.push_back(b);
      io_.gradients.push_back({t.name, b});
    }
  }
}

// Weights narrower than f32 have an f32 master, unless the optimizer's rounding (Kahan, stochastic)
// makes that unnecessary.
void Seq2Seq::record_updates(ProgramSet& set) {
  Buffer factor;
  {
    ProgramBuilder init(set, "init_state");
    std::size_t next = 0;
    for (int group = 0; group < weights_->groups(); ++group) {
      for (const WeightBuffers& home : weights_->home(init, group)) {
        const NamedGradient& g = io_.gradients[next++];
        const Tier tier = init.tier(g.gradient);
        UpdatedTensor t;
        t.name = g.name;
        t.value = home.data;
        t.gradient = g.gradient;
        t.decays = init.shape(g.gradient).rank() > 1;
        const bool narrow = init.dtype(home.data) != DType::f32;
        if ((narrow && job_.optimizer.rounding == UpdateRounding::nearest) ||
            init.tier(home.data) != tier) {
          t.narrow = home.data;
          t.value = init.persistent(g.name + ".master", init.shape(g.gradient), DType::f32,
                                    Role::optimizer, tier);
        }
        declare_states(init, job_.optimizer, t);
        io_.trained.push_back(std::move(t));
      }
    }
    io_.grad_norm = init.persistent("grad_norm", {1}, DType::f32, Role::output, Tier::host);
    factor = init.persistent("clip_factor", {1}, DType::f32, Role::output);
    record_initial_state(init, io_.trained);
  }
  {
    ProgramBuilder restored(set, "after_restore");
    record_restored(restored, io_.trained);
  }
  {
    ProgramBuilder norm(set, "grad_norm");
    record_gradient_norm(norm, io_.trained, job_.max_grad_norm, factor, io_.grad_norm);
  }
  ProgramBuilder pb(set, "update");
  record_update(pb, io_.trained, factor, job_.optimizer);
}

}  // namespace ballast::t5
