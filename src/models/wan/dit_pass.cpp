#include "models/wan/dit_pass.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "ops/copy.h"
#include "ops/fill.h"
#include "ops/flow_noise.h"
#include "ops/modulation_table.h"
#include "ops/noise.h"
#include "ops/rope_3d.h"
#include "ops/sinusoid.h"

namespace ballast::wan {

std::vector<AdapterTarget> adapter_targets(const Config& c) {
  const BlockParams<Shape> s = block_shapes(c);
  using W = BlockWeightsInUse;
  return {{"self_attn.q", &W::self_q, s.self_attn.q.weight},
          {"self_attn.k", &W::self_k, s.self_attn.k.weight},
          {"self_attn.v", &W::self_v, s.self_attn.v.weight},
          {"self_attn.o", &W::self_o, s.self_attn.o.weight},
          {"cross_attn.q", &W::cross_q, s.cross_attn.q.weight},
          {"cross_attn.k", &W::cross_k, s.cross_attn.k.weight},
          {"cross_attn.v", &W::cross_v, s.cross_attn.v.weight},
          {"cross_attn.o", &W::cross_o, s.cross_attn.o.weight},
          {"ffn.0", &W::up, s.ffn_up.weight},
          {"ffn.2", &W::down, s.ffn_down.weight}};
}

DitPass::DitPass(const Parts& parts, const DitPassIo& io, int expert, PassKind kind, Taps* taps)
    : job_(parts.job),
      weights_(parts.weights),
      gradients_(parts.gradients),
      loss_sum_(parts.loss_sum),
      loss_(parts.loss),
      io_(io),
      kind_(kind),
      pulled_(parts.job.distil && expert == 0),
      taps_(taps),
      targets_(adapter_targets(parts.job.config)),
      appended_(parts.job) {
  for (const AdapterIo& a : parts.adapters) {
    if (a.expert == expert) adapters_.emplace(a.name, &a);
  }
  if (parts.job.mode == Mode::full) parts_ = block_gradient_parts();
  for (std::size_t i = 0; i < io_.samples.size(); ++i) {
    SampleState& s = samples_.emplace_back();
    s.tokens = io_.batch.latents[i].tokens();
    s.saved.resize(to_size(job_.config.layers));
  }
}

void DitPass::record(ProgramBuilder& pb) {
  const auto fill = [this](ProgramBuilder& to, int group, std::size_t tensor,
                           const WeightBuffers& weight) {
    const auto target = appended_.target_of(tensor);
    check(target.has_value(), "tensor {} of group {} has a margin", tensor, group);
    ops::append_adapter(to, adapter_copies(to, group - block_group(0), *target, weight.wide));
  };
  weights_.begin_program(pb, adapters_.empty() ? FillPadding() : FillPadding(fill));
  upload_inputs(pb);
  embed(pb);
  const std::int64_t layers = job_.config.layers;
  for (std::int64_t b = 0; b < layers; ++b) forward_block(pb, b);
  head_and_loss(pb);
  if (backward()) {
    reload(pb, layers - 1);
    for (std::int64_t b = layers; b-- > first_trained_block();) backward_block(pb, b);
    for (std::size_t part = 0; part < kGradientParts; ++part) {
      leave_gradients(pb, static_cast<GradientPart>(part));
    }
    if (full()) embed_backward(pb);
  }
  download_outputs(pb);
  weights_.end_program(pb);
}

const AdapterIo* DitPass::adapter(const std::string& module) const {
  const auto found = adapters_.find(module);
  return found == adapters_.end() ? nullptr : found->second;
}

std::int64_t DitPass::first_trained_block() const {
  if (job_.mode != Mode::lora) return 0;
  std::int64_t block = 0;
  while (block + 1 < job_.config.layers &&
         gradients_[to_size(block_group(block))].persistent.empty()) {
    ++block;
  }
  return block;
}

// The file's own 8-bit weights are taken as they are, and some have scales that the sums of an
// 8-bit product cannot be multiplied with.
void DitPass::check_fp8(ProgramBuilder& pb, const std::string& name, const AdaptedLinear& l) const {
  if (ops::fp8_linear_takes(pb, l.weight)) return;
  const Buffer scale = l.weight.scale;
  fail(ErrorCode::input,
       fmt::format("fp8 products take float8_e4m3 weights without a scale, with one, or with one "
                   "per row; {} {} is {}{}",
                   name, pb.shape(l.weight.weight), pb.dtype(l.weight.weight),
                   scale ? fmt::format(" with scales {}", pb.shape(scale)) : ""),
       {{"leave out --fp8-matmul", "these weights are widened and multiplied in bf16"},
        {"use the bf16 file", "its weights are brought to float8_e4m3 with a scale per row"}});
}

AdaptedLinear DitPass::linear_of(const LinearParams<WeightBuffers>& w,
                                 const LinearParams<Buffer>& grads) const {
  AdaptedLinear l;
  l.weight = {.weight = w.weight.data, .bias = w.bias.data, .scale = w.weight.scale};
  l.appended.wide = w.weight.wide;
  l.dweight = grads.weight;
  l.dbias = grads.bias;
  l.dw_quantum = row_unit(job_);
  return l;
}

namespace {

void renew_matrices(const BlockParams<WeightBuffers>& p, BlockWeightsInUse& w) {
  const auto renew = [](AdaptedLinear& l, const LinearParams<WeightBuffers>& from) {
    l.weight.weight = from.weight.data;
    l.weight.scale = from.weight.scale;
    l.appended.wide = from.weight.wide;
  };
  renew(w.self_q, p.self_attn.q), renew(w.self_k, p.self_attn.k);
  renew(w.self_v, p.self_attn.v), renew(w.self_o, p.self_attn.o);
  renew(w.cross_q, p.cross_attn.q), renew(w.cross_k, p.cross_attn.k);
  renew(w.cross_v, p.cross_attn.v), renew(w.cross_o, p.cross_attn.o);
  renew(w.up, p.ffn_up), renew(w.down, p.ffn_down);
}

}  // namespace

BlockWeightsInUse DitPass::block_weights(ProgramBuilder& pb, std::int64_t block, bool backward) {
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
  if (job_.policy.stream().matrices_ahead > 0 && !weights_.resident(group)) {
    w.renew = [this, group](ProgramBuilder& to, BlockWeightsInUse& weights) {
      renew_matrices(group_buffers<BlockParams<WeightBuffers>>(to, group), weights);
    };
  }
  if (job_.fp8_matmul) {
    for (const AdapterTarget& t : targets_) {
      AdaptedLinear& l = w.*t.linear;
      check_fp8(pb, fmt::format("blocks.{}.{}", block, t.name), l);
      l.fp8 = true;
    }
  }
  attach_adapters(pb, block, backward, w);
  return w;
}

std::vector<ops::AppendAdapterBuffers> DitPass::adapter_copies(ProgramBuilder& pb,
                                                               std::int64_t block,
                                                               std::size_t target,
                                                               Buffer wide) const {
  const auto io = [&](std::size_t t) {
    const AdapterIo* a = adapter(fmt::format("blocks.{}.{}", block, targets_[t].name));
    check(a != nullptr, "{} of block {} has a margin and no adapter", targets_[t].name, block);
    return *a;
  };
  const AppendedColumns p = appended_.columns_of(block, target);
  const std::int64_t outputs = targets_[target].weight[0], inputs = targets_[target].weight[1];
  const std::int64_t own = AppendedAdapter::padded(job_.lora.rank);
  std::vector<ops::AppendAdapterBuffers> all = {
      {.from = io(target).b,
       .to = pb.columns(pb.rows(wide, 0, outputs), inputs, p.columns),
       .column = p.first,
       .factor = job_.lora.scale()}};
  for (std::size_t i = 0; i < p.down.size(); ++i) {
    const std::int64_t row = outputs + static_cast<std::int64_t>(i) * own;
    all.push_back({.from = io(p.down[i]).a, .to = pb.columns(pb.rows(wide, row, own), 0, inputs)});
  }
  return all;
}

// Once in a run of the program: adapters change between runs only.
void DitPass::append_adapters(ProgramBuilder& pb, std::int64_t block, const BlockWeightsInUse& w) {
  if (!weights_.resident(block_group(block)) || !appended_blocks_.insert(block).second) return;
  std::vector<ops::AppendAdapterBuffers> all;
  for (std::size_t t = 0; t < targets_.size(); ++t) {
    const Buffer wide = (w.*targets_[t].linear).appended.wide;
    if (!wide) continue;
    for (const ops::AppendAdapterBuffers& i : adapter_copies(pb, block, t, wide)) all.push_back(i);
  }
  if (!all.empty()) ops::append_adapter(pb, std::move(all));
}

void DitPass::attach_adapters(ProgramBuilder& pb, std::int64_t block, bool backward,
                              BlockWeightsInUse& w) {
  append_adapters(pb, block, w);
  const float scale = job_.lora.scale();
  const std::string prefix = fmt::format("blocks.{}.", block);
  const auto& grads = gradients_[to_size(block_group(block))].device;
  Buffer factors;  // of the whole block, as its products read them
  for (std::size_t t = 0; t < targets_.size(); ++t) {
    const AdapterIo* io = adapter(prefix + targets_[t].name);
    if (!io) continue;
    // The same part of another buffer of the block.
    const auto part = [&pb](Buffer all, Buffer like) {
      const BufferSpec s = pb.set().spec(like);
      const DType to = pb.dtype(all);
      return pb.view(all, s.offset / size_of(s.dtype) * size_of(to), to, s.shape);
    };
    AdaptedLinear& l = w.*targets_[t].linear;
    if (backward) l.adapter_grads = {.da = part(grads[0], io->da), .db = part(grads[0], io->db)};
    if (l.appended) {
      const AppendedColumns p = appended_.columns_of(block, t);
      l.appended = {.wide = l.appended.wide,
                    .columns = p.columns,
                    .first = p.first,
                    .own = AppendedAdapter::padded(job_.lora.rank),
                    .inputs = targets_[t].weight[1],
                    .outputs = targets_[t].weight[0]};
      l.adapter = {.a = io->a, .b = io->b, .scale = scale};
      continue;
    }
    if (!factors) {
      factors = pb.set().spec(io->a).root;
      // Rounded once for all products of the visit.
      if (job_.precision.activation == DType::bf16) factors = ops::cast(pb, factors, DType::bf16);
    }
    l.adapter = {.a = part(factors, io->a), .b = part(factors, io->b), .scale = scale};
    if (kind_ == PassKind::train) {
      l.adapter.dropout = {.probability = job_.lora.dropout,
                           .hidden = job_.lora.hidden_dropout,
                           .ranks = job_.lora.rank_dropout,
                           .module = job_.lora.module_dropout,
                           .site = ops::random_site("dropout", io->name, 0)};
    }
  }
}

BlockSample DitPass::block_sample(std::size_t i) const {
  const SampleState& s = samples_[i];
  return {.index = static_cast<int>(i),
          .tokens = s.tokens,
          .timestep_row = io_.samples[i].timestep_row,
          .rope = s.rope,
          .context = s.context,
          .dcontext = s.dcontext};
}

Buffer DitPass::upload(ProgramBuilder& pb, const char* name, Buffer from, DType dtype) const {
  if (!from) return {};
  const Buffer to = pb.temp(name, pb.shape(from), dtype, Role::input);
  ops::copy(pb, from, to, Lane::upload);
  return to;
}

void DitPass::upload_inputs(ProgramBuilder& pb) {
  const auto scope = pb.scope("inputs");
  time_.sinusoid = ops::sinusoid(pb, upload(pb, "timesteps", io_.timesteps, DType::f64),
                                 job_.config.freq_dim);  // [T, Q]
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    const DitSampleIo& io = io_.samples[i];
    SampleState& s = samples_[i];
    s.latent = upload(pb, "latent", io.latent, f32);
    s.conditioning = upload(pb, "conditioning", io.conditioning, f32);
    s.context_in = upload(pb, "context", io.context, job_.precision.activation);
    s.mask = upload(pb, "mask", io.mask, f32);
    s.rope = ops::rope_3d_table(pb, io_.batch.latents[i].grid(), job_.config.head_dim());
    if (job_.noising != Noising::given && scores()) {
      s.loss_weight = upload(pb, "loss_weight", io.loss_weight, f32);
    }
    if (job_.noising == Noising::recorded && scores()) {
      const Buffer noise = pb.temp("noise", pb.shape(s.latent), f32);
      ops::noise(pb, noise, ops::random_site("noise", "latent", static_cast<std::int64_t>(i)));
      const ops::FlowNoiseOut noisy = ops::flow_noise(
          pb, s.latent, noise, upload(pb, "noise_fraction", io.noise_fraction, f32));
      s.latent = noisy.x_t;
      s.target = noisy.target;
    }
    if (taps_) {
      taps_->tap(pb, "mid.rope", static_cast<int>(i),
                 pb.reshape(s.rope, {s.tokens, job_.config.head_dim()}), 0);
    }
  }
}

Activations DitPass::kept_of(std::int64_t block) const {
  return evenly_chosen(block, job_.config.layers, job_.policy.kept_blocks)
             ? Activations::kept
             : job_.policy.activations;
}

void DitPass::forward_block(ProgramBuilder& pb, std::int64_t block) {
  const auto scope = pb.scope(fmt::format("blocks.{}", block));
  BlockWeightsInUse w = next_weights_ ? std::move(*next_weights_) : block_weights(pb, block, false);
  next_weights_.reset();
  const bool tapped = taps_ && block == 0;
  const DitBlock layer(job_.config, job_.policy, job_.precision, tapped ? taps_ : nullptr,
                       "mid.block0.");
  // The next block's weights may take the places of these, which no further sample needs.
  const bool joins = samples_.size() == 1 && DitBlock::joins_norms(job_.policy);
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    SampleState& s = samples_[i];
    BlockSaved& saved = s.saved[to_size(block)];
    if (i > 0 && w.renew) w.renew(pb, w);
    DitBlock::Norms norms = {.z = std::exchange(s.z, {})};
    if (joins && block + 1 < job_.config.layers) {
      norms.next = [&, i] {
        next_weights_ = block_weights(pb, block + 1, false);
        return layer.first_norm(pb, *next_weights_, block_sample(i));
      };
    }
    s.x = layer.forward(pb, w, block_sample(i), s.x, kept_of(block), backward() ? &saved : nullptr,
                        norms);
    s.z = norms.next_z;
    if (backward()) offload(pb, saved);
    if (taps_) taps_->tap(pb, fmt::format("mid.block{}.x", block), static_cast<int>(i), s.x, 0);
  }
}

// visit(kept buffer) for all that the block keeps for backward.
template <class Visit>
void each_saved(BlockSaved& saved, Visit&& visit) {
  for (Buffer* b : {&saved.x,          &saved.attention,
                    &saved.lse,        &saved.q,
                    &saved.k,          &saved.v,
                    &saved.cross_q,    &saved.cross_k,
                    &saved.cross_v,    &saved.cross_attention,
                    &saved.cross_lse,  &saved.x1,
                    &saved.x2,         &saved.pre,
                    &saved.self_out,   &saved.ffn_out,
                    &saved.u.self_qkv, &saved.u.self_o,
                    &saved.u.cross_q,  &saved.u.cross_kv,
                    &saved.u.cross_o,  &saved.u.up}) {
    if (*b) visit(*b);
  }
}

// Copies b to a temporary, and with it the u behind its rows, where there is room for one.
Buffer DitPass::moved(ProgramBuilder& pb, const char* name, Buffer b, Tier to, Lane lane) {
  const Shape& root = pb.shape(pb.set().spec(b).root);
  const Shape shape = pb.shape(b);
  if (root == shape) {
    const Buffer copy = pb.temp(name, shape, pb.dtype(b), Role::checkpoint, to);
    ops::copy(pb, b, copy, lane);
    return copy;
  }
  const std::int64_t used = AppendedAdapter::padded(job_.lora.rank);
  const std::int64_t room = to == Tier::host ? used : AppendedAdapter::room(used, pb.dtype(b));
  const Buffer copy = pb.temp(name, {shape[0], shape[1] + room}, pb.dtype(b), Role::checkpoint, to);
  ops::copy(pb, pb.row_columns(b, 0, shape[1] + used), pb.columns(copy, 0, shape[1] + used), lane);
  return pb.columns(copy, 0, shape[1]);
}

void DitPass::offload(ProgramBuilder& pb, BlockSaved& saved) {
  each_saved(saved, [&](Buffer& b) {
    pb.set_role(b, Role::checkpoint);
    if (job_.policy.offload) b = moved(pb, "offloaded", b, Tier::host, Lane::download);
  });
}

// Recorded beside the work of the block before: all of it, or in halves the last products, by when
// most memory is free.
void DitPass::reload(ProgramBuilder& pb, std::int64_t block) {
  if (!job_.policy.offload || block < 0) return;
  const auto scope = pb.scope(fmt::format("blocks.{}", block));
  for (SampleState& s : samples_) {
    each_saved(s.saved[to_size(block)],
               [&](Buffer& b) { b = moved(pb, "brought_back", b, Tier::device, Lane::upload); });
  }
}

void DitPass::backward_block(ProgramBuilder& pb, std::int64_t block) {
  const bool late = job_.policy.split_backward && kept_of(block - 1) != Activations::kept;
  if (!late) reload(pb, block - 1);
  const auto scope = pb.scope(fmt::format("blocks.{}.backward", block));
  const int group = block_group(block);
  declare_gradients(pb, group);
  BlockWeightsInUse w = block_weights(pb, block, true);
  const DitBlock layer(job_.config, job_.policy, job_.precision);
  // With a frozen base nothing before the first block with adapters needs a gradient.
  const bool wants_dx = full() || block > first_trained_block();
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    const SampleState& s = samples_[i];
    if (i > 0 && w.renew) w.renew(pb, w);
    w.gradients_come = {};
    if (i == 0) {
      w.gradients_come = [this, group](ProgramBuilder& to, GradientPart part) {
        come_gradients(to, group, part);
      };
    }
    layer.backward(pb, w, block_sample(i), s.saved[to_size(block)], s.dx, wants_dx, [&] {
      if (late && i + 1 == samples_.size()) reload(pb, block - 1);
    });
  }
  if (full()) {
    const auto g = group_gradients<BlockParams<Buffer>>(group);
    ops::modulation_table_backward(pb, w.dmodulation, false, time_.de0, g.modulation);
  }
}

void DitPass::download_outputs(ProgramBuilder& pb) {
  if (scores() && job_.noising != Noising::given) return;  // nobody asks for it
  const auto scope = pb.scope("outputs");
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    if (!io_.samples[i].output) continue;
    ops::copy(pb, samples_[i].output, io_.samples[i].output, Lane::download);
  }
}

}  // namespace ballast::wan
