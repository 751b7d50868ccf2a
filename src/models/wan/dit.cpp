#include "models/wan/dit.h"

#include "core/error.h"
#include "models/wan/dit_update.h"
#include "ops/copy.h"
#include "ops/fill.h"
#include "ops/modulation_table.h"
#include "ops/rope_3d.h"
#include "ops/sinusoid.h"

namespace ballast::wan {
namespace {

// The linear layers that adapters attach to, in the order of BlockWeightsInUse.
constexpr std::array<std::pair<const char*, AdaptedLinear BlockWeightsInUse::*>, 10> kTargets = {{
    {"self_attn.q", &BlockWeightsInUse::self_q},
    {"self_attn.k", &BlockWeightsInUse::self_k},
    {"self_attn.v", &BlockWeightsInUse::self_v},
    {"self_attn.o", &BlockWeightsInUse::self_o},
    {"cross_attn.q", &BlockWeightsInUse::cross_q},
    {"cross_attn.k", &BlockWeightsInUse::cross_k},
    {"cross_attn.v", &BlockWeightsInUse::cross_v},
    {"cross_attn.o", &BlockWeightsInUse::cross_o},
    {"ffn.0", &BlockWeightsInUse::up},
    {"ffn.2", &BlockWeightsInUse::down},
}};

constexpr DType f32 = DType::f32;

}  // namespace

std::string_view name_of(Mode m) {
  switch (m) {
    case Mode::infer:
      return "infer";
    case Mode::lora:
      return "lora";
    case Mode::full:
      return "full";
  }
  return "?";
}

Dit::Dit(ProgramSet& set, DitJob job, std::vector<WeightGroup> groups, Taps* taps)
    : set_(set), job_(std::move(job)), taps_(taps) {
  validate(job_.config);
  check(static_cast<int>(groups.size()) == group_count(job_.config),
        "{} weight groups for a model that has {}", groups.size(), group_count(job_.config));
  check(!job_.latents.empty(), "a batch has at least one sample");
  // Weights that change cannot be streamed from the user's file.
  if (full()) job_.policy.home = WeightHome::host;
  {
    ProgramBuilder load(set_, "load");
    weights_.emplace(load, std::move(groups), job_.policy, job_.format);
    declare_io(load);
    declare_adapters(load);
    declare_gradients(load);
    for (std::size_t i = 0; i < job_.latents.size(); ++i) {
      SampleState& s = samples_.emplace_back();
      s.tokens = job_.latents[i].tokens();
      s.saved.resize(static_cast<std::size_t>(job_.config.layers));
      ops::rope_3d_table_into(load, job_.latents[i].grid(), io_.samples[i].rope);
    }
  }
  {
    ProgramBuilder step(set_, "step");
    record_step(step);
  }
  if (trains() && job_.record_update) record_update(set_, job_, *weights_, io_);
}

void Dit::declare_io(ProgramBuilder& pb) {
  const Config& c = job_.config;
  const auto host = [&](const std::string& name, const Shape& shape, DType dtype, Role role) {
    return pb.persistent(name, shape, dtype, role, Tier::host);
  };
  io_.timesteps = host("timesteps", {job_.timestep_rows}, DType::f64, Role::input);
  if (trains()) io_.loss = host("loss", {1}, DType::f64, Role::output);
  for (std::size_t i = 0; i < job_.latents.size(); ++i) {
    const LatentSize& z = job_.latents[i];
    const auto scope = pb.scope(fmt::format("sample.{}", i));
    const Shape latent = {c.out_dim, z.frames, z.height, z.width};
    DitSampleIo& s = io_.samples.emplace_back();
    s.latent = host("latent", latent, f32, Role::input);
    if (c.conditioning() > 0) {
      s.conditioning =
          host("conditioning", {c.conditioning(), z.frames, z.height, z.width}, f32, Role::input);
    }
    s.context = host("context", {c.text_len, c.text_dim}, f32, Role::input);
    s.timestep_row = pb.persistent("timestep_row", {z.tokens()}, DType::i32, Role::input);
    s.rope = pb.persistent("rope", {z.tokens(), c.head_dim() / 2, 2}, f32, Role::input);
    s.output = host("output", latent, f32, Role::output);
    if (trains()) s.target = host("target", latent, f32, Role::input);
    if (full() && job_.input_gradients) {
      s.dlatent = host("dlatent", latent, f32, Role::output);
      s.dcontext = host("dcontext", {c.text_len, c.text_dim}, f32, Role::output);
    }
  }
}

void Dit::declare_adapters(ProgramBuilder& pb) {
  if (job_.mode != Mode::lora && !job_.adapters_in_inference) return;
  const auto shapes = block_shapes(job_.config);
  const std::array<const LinearParams<Shape>*, kTargets.size()> targets = {
      &shapes.self_attn.q,  &shapes.self_attn.k,  &shapes.self_attn.v,  &shapes.self_attn.o,
      &shapes.cross_attn.q, &shapes.cross_attn.k, &shapes.cross_attn.v, &shapes.cross_attn.o,
      &shapes.ffn_up,       &shapes.ffn_down};
  for (std::int64_t block = 0; block < job_.config.layers; ++block) {
    for (std::size_t t = 0; t < kTargets.size(); ++t) {
      const Shape a = {job_.lora.rank, targets[t]->weight[1]};
      const Shape b = {targets[t]->weight[0], job_.lora.rank};
      AdapterIo& io = io_.adapters.emplace_back();
      io.name = fmt::format("blocks.{}.{}", block, kTargets[t].first);
      io.a = pb.persistent(io.name + ".lora_A", a, f32, Role::adapter);
      io.b = pb.persistent(io.name + ".lora_B", b, f32, Role::adapter);
      if (!trains()) continue;
      io.da = pb.persistent(io.name + ".lora_A.grad", a, f32, Role::gradient);
      io.db = pb.persistent(io.name + ".lora_B.grad", b, f32, Role::gradient);
      if (!job_.record_update) continue;
      io.a_m = pb.persistent(io.name + ".lora_A.m", a, f32, Role::optimizer);
      io.a_v = pb.persistent(io.name + ".lora_A.v", a, f32, Role::optimizer);
      io.b_m = pb.persistent(io.name + ".lora_B.m", b, f32, Role::optimizer);
      io.b_v = pb.persistent(io.name + ".lora_B.v", b, f32, Role::optimizer);
    }
  }
}

// Gradients of a group stay on the device with its weights, or go to the host with them.
void Dit::declare_gradients(ProgramBuilder& pb) {
  if (!full()) return;
  for (int g = 0; g < weights_->groups(); ++g) {
    GroupGradients& grads = gradients_.emplace_back();
    const bool stays = weights_->resident(g);
    for (const StoredTensor& t : weights_->group(g).tensors) {
      const Buffer b = pb.persistent(t.name + ".grad", t.data.shape, f32, Role::gradient,
                                     stays ? Tier::device : Tier::host);
      (stays ? grads.device : grads.host).push_back(b);
      io_.gradients.push_back({t.name, b});
    }
  }
}

void Dit::begin_gradients(ProgramBuilder& pb, int group) {
  if (!full()) return;
  GroupGradients& grads = gradients_[static_cast<std::size_t>(group)];
  if (!grads.host.empty()) {
    grads.device.clear();
    for (const Buffer h : grads.host) {
      grads.device.push_back(pb.temp("grad", pb.shape(h), f32, Role::gradient));
    }
  }
  for (const Buffer b : grads.device) ops::fill(pb, b, 0);
}

void Dit::end_gradients(ProgramBuilder& pb, int group) {
  if (!full()) return;
  const GroupGradients& grads = gradients_[static_cast<std::size_t>(group)];
  for (std::size_t i = 0; i < grads.host.size(); ++i) {
    ops::copy(pb, grads.device[i], grads.host[i], Lane::download);
  }
}

AdaptedLinear Dit::linear_of(const LinearParams<WeightBuffers>& w,
                             const LinearParams<Buffer>& grads) const {
  AdaptedLinear l;
  l.weight = {.weight = w.weight.data, .bias = w.bias.data, .scale = w.weight.scale};
  l.dweight = grads.weight;
  l.dbias = grads.bias;
  return l;
}

BlockWeightsInUse Dit::block_weights(ProgramBuilder& pb, std::int64_t block, bool backward) {
  const int group = block_group(block);
  const auto p = group_buffers<BlockParams<WeightBuffers>>(pb, group);
  const auto g = backward ? group_gradients<BlockParams<Buffer>>(group) : BlockParams<Buffer>();
  BlockWeightsInUse w;
  w.self_q = linear_of(p.self_attn.q, g.self_attn.q);
  w.self_k = linear_of(p.self_attn.k, g.self_attn.k);
  w.self_v = linear_of(p.self_attn.v, g.self_attn.v);
  w.self_o = linear_of(p.self_attn.o, g.self_attn.o);
  w.cross_q = linear_of(p.cross_attn.q, g.cross_attn.q);
  w.cross_k = linear_of(p.cross_attn.k, g.cross_attn.k);
  w.cross_v = linear_of(p.cross_attn.v, g.cross_attn.v);
  w.cross_o = linear_of(p.cross_attn.o, g.cross_attn.o);
  w.up = linear_of(p.ffn_up, g.ffn_up);
  w.down = linear_of(p.ffn_down, g.ffn_down);
  w.self_norm_q = {p.self_attn.norm_q.data, g.self_attn.norm_q};
  w.self_norm_k = {p.self_attn.norm_k.data, g.self_attn.norm_k};
  w.cross_norm_q = {p.cross_attn.norm_q.data, g.cross_attn.norm_q};
  w.cross_norm_k = {p.cross_attn.norm_k.data, g.cross_attn.norm_k};
  w.norm3 = {p.norm3.weight.data, g.norm3.weight};
  w.norm3_bias = {p.norm3.bias.data, g.norm3.bias};
  w.modulation = ops::modulation_table(pb, p.modulation.data, time_.e0, 6, false);  // [6, T, C]
  // The forward pass must know as well whether gates train: it decides what is worth keeping.
  if (full()) {
    w.dmodulation = pb.temp("dmodulation", pb.shape(w.modulation), f32, Role::gradient);
    if (backward) ops::fill(pb, w.dmodulation, 0);
  }
  if (io_.adapters.empty()) return w;
  const float scale = job_.lora.alpha / static_cast<float>(job_.lora.rank);
  for (std::size_t t = 0; t < kTargets.size(); ++t) {
    const AdapterIo& io = io_.adapters[static_cast<std::size_t>(block) * kTargets.size() + t];
    AdaptedLinear& l = w.*kTargets[t].second;
    l.adapter = {.a = io.a, .b = io.b, .scale = scale};
    l.adapter_grads = {.da = io.da, .db = io.db};
  }
  return w;
}

BlockSample Dit::block_sample(ProgramBuilder&, std::size_t i) const {
  const SampleState& s = samples_[i];
  return {.index = static_cast<int>(i),
          .tokens = s.tokens,
          .timestep_row = io_.samples[i].timestep_row,
          .rope = io_.samples[i].rope,
          .context = s.context,
          .dcontext = s.dcontext};
}

void Dit::record_step(ProgramBuilder& pb) {
  weights_->begin_program();
  upload_inputs(pb);
  embed(pb);
  for (std::int64_t b = 0; b < job_.config.layers; ++b) forward_block(pb, b);
  head_and_loss(pb);
  if (trains()) {
    bring_back(pb, job_.config.layers - 1);
    for (std::int64_t b = job_.config.layers; b-- > 0;) backward_block(pb, b);
    if (full()) embed_backward(pb);
  }
  download_outputs(pb);
}

void Dit::upload_inputs(ProgramBuilder& pb) {
  const auto scope = pb.scope("inputs");
  const auto up = [&](const char* name, Buffer from, DType dtype) {
    if (!from) return Buffer();
    const Buffer to = pb.temp(name, pb.shape(from), dtype, Role::input);
    ops::copy(pb, from, to, Lane::upload);
    return to;
  };
  time_ = {};
  time_.sinusoid = ops::sinusoid(pb, up("timesteps", io_.timesteps, DType::f64),
                                 job_.config.freq_dim);  // [T, Q]
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    SampleState& s = samples_[i];
    s.latent = up("latent", io_.samples[i].latent, f32);
    s.conditioning = up("conditioning", io_.samples[i].conditioning, f32);
    s.context_in = up("context", io_.samples[i].context, job_.precision.activation);
  }
}

Activations Dit::kept_of(std::int64_t block) const {
  return evenly_chosen(block, job_.config.layers, job_.policy.kept_blocks)
             ? Activations::kept
             : job_.policy.activations;
}

void Dit::forward_block(ProgramBuilder& pb, std::int64_t block) {
  const auto scope = pb.scope(fmt::format("blocks.{}", block));
  const BlockWeightsInUse w = block_weights(pb, block, false);
  const bool tapped = taps_ && block == 0;
  const DitBlock layer(job_.config, job_.policy, job_.precision, tapped ? taps_ : nullptr,
                       "mid.block0.");
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    SampleState& s = samples_[i];
    BlockSaved& saved = s.saved[static_cast<std::size_t>(block)];
    s.x =
        layer.forward(pb, w, block_sample(pb, i), s.x, kept_of(block), trains() ? &saved : nullptr);
    if (trains()) offload(pb, saved);
    if (taps_) taps_->tap(pb, fmt::format("mid.block{}.x", block), static_cast<int>(i), s.x, 0);
  }
}

// visit(kept buffer) for all that the block keeps for backward.
template <class Visit>
void each_saved(BlockSaved& saved, Visit&& visit) {
  for (Buffer* b :
       {&saved.x, &saved.attention, &saved.lse, &saved.q, &saved.k, &saved.v, &saved.cross_q,
        &saved.cross_k, &saved.cross_v, &saved.cross_attention, &saved.cross_lse, &saved.x1,
        &saved.x2, &saved.pre, &saved.self_out, &saved.ffn_out}) {
    if (*b) visit(*b);
  }
}

void Dit::offload(ProgramBuilder& pb, BlockSaved& saved) {
  each_saved(saved, [&](Buffer& b) {
    pb.set_role(b, Role::checkpoint);
    if (!job_.policy.offload) return;
    const Buffer host =
        pb.temp("offloaded", pb.shape(b), pb.dtype(b), Role::checkpoint, Tier::host);
    ops::copy(pb, b, host, Lane::download);
    b = host;
  });
}

// Recorded one block before it is needed, so that the copies run beside that block's work.
void Dit::bring_back(ProgramBuilder& pb, std::int64_t block) {
  if (!job_.policy.offload || block < 0) return;
  const auto scope = pb.scope(fmt::format("blocks.{}", block));
  for (SampleState& s : samples_) {
    each_saved(s.saved[static_cast<std::size_t>(block)], [&](Buffer& b) {
      const Buffer back = pb.temp("brought_back", pb.shape(b), pb.dtype(b), Role::checkpoint);
      ops::copy(pb, b, back, Lane::upload);
      b = back;
    });
  }
}

void Dit::backward_block(ProgramBuilder& pb, std::int64_t block) {
  bring_back(pb, block - 1);
  const auto scope = pb.scope(fmt::format("blocks.{}.backward", block));
  const int group = block_group(block);
  begin_gradients(pb, group);
  for (std::size_t t = 0; t < kTargets.size() && job_.mode == Mode::lora; ++t) {
    const AdapterIo& io = io_.adapters[static_cast<std::size_t>(block) * kTargets.size() + t];
    ops::fill(pb, io.da, 0);
    ops::fill(pb, io.db, 0);
  }
  const BlockWeightsInUse w = block_weights(pb, block, true);
  const DitBlock layer(job_.config, job_.policy, job_.precision);
  // With a frozen base nothing before the first block's adapters needs a gradient.
  const bool wants_dx = full() || block > 0;
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    const SampleState& s = samples_[i];
    layer.backward(pb, w, block_sample(pb, i), s.saved[static_cast<std::size_t>(block)], s.dx,
                   wants_dx);
  }
  if (full()) {
    const auto g = group_gradients<BlockParams<Buffer>>(group);
    ops::modulation_table_backward(pb, w.dmodulation, false, time_.de0, g.modulation);
  }
  end_gradients(pb, group);
}

void Dit::download_outputs(ProgramBuilder& pb) {
  const auto scope = pb.scope("outputs");
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    ops::copy(pb, samples_[i].output, io_.samples[i].output, Lane::download);
  }
}

}  // namespace ballast::wan
