#include "models/wan/dit_block.h"

#include <cmath>

#include "core/error.h"
#include "ops/gated_residual.h"
#include "ops/layer_norm.h"
#include "ops/rms_norm.h"

namespace ballast::wan {

Buffer DitBlock::full(ProgramBuilder& pb, const char* name, const BlockSample& s, DType dtype,
                      std::int64_t room) const {
  return AppendedAdapter::temp(pb, name, {s.tokens, config_.dim}, dtype, room);
}

ops::LayerNormOut DitBlock::normed(ProgramBuilder& pb, Buffer x, const ops::NormTables& tables,
                                   const AdaptedLinear& reader) const {
  const Buffer y = AppendedAdapter::temp(pb, "norm", pb.shape(x), precision_.activation,
                                         reader.appended.columns);         // [R, C]
  const Buffer stats = pb.temp("stats", {pb.shape(x)[0], 2}, DType::f32);  // [R, 2]
  ops::layer_norm_into(pb, x, tables, y, stats, config_.eps);
  return {y, stats};
}

ops::LayerNormOut DitBlock::residual_normed(ProgramBuilder& pb, Buffer x, Buffer y,
                                            const ops::Gate& gate, Buffer out,
                                            const ops::NormTables& tables,
                                            const AdaptedLinear& reader) const {
  return ops::residual_norm_into(
      pb, x, y, gate, out, tables, config_.eps,
      AppendedAdapter::temp(pb, "z", pb.shape(x), precision_.activation, reader.appended.columns));
}

Buffer DitBlock::heads(ProgramBuilder& pb, Buffer b) const {
  return pb.split_columns(b, config_.heads);
}

Buffer DitBlock::modulation_row(ProgramBuilder& pb, Buffer m, int row) const {
  if (!m) return {};
  const Buffer r = pb.rows(m, row, 1);
  return pb.reshape(r, {pb.shape(m)[1], pb.shape(m)[2]});  // [T, C]
}

void DitBlock::tap(ProgramBuilder& pb, const char* name, const BlockSample& s, Buffer rows,
                   std::int64_t first) const {
  if (taps_) taps_->tap(pb, tap_prefix_ + name, s.index, rows, first);
}

LinearGroup DitBlock::self_qkv(ProgramBuilder& pb, const BlockWeightsInUse& w, const BlockSample& s,
                               std::int64_t first_row) const {
  return {pb,
          {w.self_q.at(first_row, s.index), w.self_k.at(first_row, s.index),
           w.self_v.at(first_row, s.index)}};
}

LinearGroup DitBlock::cross_kv(ProgramBuilder& pb, const BlockWeightsInUse& w,
                               const BlockSample& s) const {
  return {pb, {w.cross_k.at(0, s.index), w.cross_v.at(0, s.index)}};
}

Buffer DitBlock::adapter_input(ProgramBuilder& pb, std::int64_t rows,
                               std::initializer_list<const AdaptedLinear*> layers) const {
  std::int64_t rank = 0;
  for (const AdaptedLinear* l : layers) rank += l->u_columns(pb);
  return rank == 0 ? Buffer() : pb.temp("u", {rows, rank}, precision_.activation);
}

FirstNorm DitBlock::first_norm(ProgramBuilder& pb, const BlockWeightsInUse& w,
                               const BlockSample& s) const {
  return {.tables = {.mul = modulation_row(pb, w.modulation, scale1),
                     .add = modulation_row(pb, w.modulation, shift1),
                     .index = s.timestep_row,
                     .one_plus = true},
          .room = w.self_q.appended.columns};
}

// z = LN(x) (1 + scale) + shift;  q, k, v = z W^T + b
void DitBlock::project_qkv(ProgramBuilder& pb, const BlockWeightsInUse& w, const BlockSample& s,
                           Buffer x, Buffer q, Buffer k, Buffer v, Buffer u, Buffer made_z) const {
  for (const TokenChunk& c : token_chunks(policy_, s.tokens)) {
    Buffer z = made_z;  // [R, C]
    if (!z) {
      ops::NormTables tables = first_norm(pb, w, s).tables;
      tables.index = pb.rows(tables.index, c.first, c.rows);
      z = normed(pb, pb.rows(x, c.first, c.rows), tables, w.self_q).y;
    }
    const auto rows = [&](Buffer b) { return b ? pb.rows(b, c.first, c.rows) : Buffer(); };
    self_qkv(pb, w, s, c.first).forward(pb, z, {{rows(q), rows(k), rows(v)}}, rows(u));
  }
}

void DitBlock::project_context(ProgramBuilder& pb, const BlockWeightsInUse& w, const BlockSample& s,
                               Buffer u, Buffer& cross_k, Buffer& cross_v) const {
  const Shape shape = {pb.shape(s.context)[0], config_.dim};
  cross_k = pb.temp("cross_k", shape, precision_.activation);
  cross_v = pb.temp("cross_v", shape, precision_.activation);
  cross_kv(pb, w, s).forward(pb, s.context, {{cross_k, cross_v}}, u);
}

// y = rotate(raw * r * gain)
DitBlock::Qk DitBlock::norm_and_rotate(ProgramBuilder& pb, const BlockSample& s, Buffer raw,
                                       Buffer gain, bool rotate, Buffer y) const {
  const std::int64_t rows = pb.shape(raw)[0];
  const Qk out = {y, pb.temp("r", {rows}, DType::f32)};
  for (const TokenChunk& c : token_chunks(policy_, rows)) {
    const Buffer part = pb.rows(y, c.first, c.rows);
    ops::rms_norm_into(pb, pb.rows(raw, c.first, c.rows), gain, part,
                       pb.rows(out.r, c.first, c.rows), config_.eps,
                       rotate ? pb.rows(s.rope, c.first, c.rows) : Buffer());
  }
  return out;
}

void DitBlock::attend(ProgramBuilder& pb, Buffer q, Buffer k, Buffer v, Buffer o,
                      Buffer lse) const {
  ops::attention_into(pb, heads(pb, q), heads(pb, k), heads(pb, v), heads(pb, o), lse,
                      attention_options());
}

ops::AttentionOptions DitBlock::attention_options() const {
  return {.scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim())),
          .heads_per_group = policy_.heads_per_group};
}

ops::NormTables DitBlock::norm3_tables(ProgramBuilder& pb, const BlockWeightsInUse& w) const {
  return {.mul = pb.reshape(w.norm3.weight, {1, config_.dim}),
          .add = pb.reshape(w.norm3_bias.weight, {1, config_.dim}),
          .index = {},
          .one_plus = false};
}

// x1 = x + (o Wo^T + bo) gate1;  cross_q = LN3(x1) Wq^T + bq
void DitBlock::attention_residual(ProgramBuilder& pb, const BlockWeightsInUse& w,
                                  const BlockSample& s, Buffer x, Buffer o, Buffer x1,
                                  Buffer cross_q, const BlockSaved& keep, bool u_is_there) const {
  for (const TokenChunk& c : token_chunks(policy_, s.tokens)) {
    const auto rows = [&](Buffer b) { return b ? pb.rows(b, c.first, c.rows) : Buffer(); };
    const Buffer part = rows(x1);
    const Buffer y = keep.self_out
                         ? rows(keep.self_out)
                         : pb.temp("self_out", {c.rows, config_.dim}, precision_.activation);
    if (u_is_there && w.self_o.appended) {
      w.self_o.multiply(pb, rows(o), y, {});
    } else {
      w.self_o.at(c.first, s.index).forward(pb, rows(o), y, rows(keep.u.self_o));
    }
    tap(pb, "self_attn", s, y, c.first);
    const Buffer z = residual_normed(pb, rows(x), y,
                                     {.table = modulation_row(pb, w.modulation, gate1),
                                      .index = rows(s.timestep_row)},
                                     part, norm3_tables(pb, w), w.cross_q)
                         .y;
    w.cross_q.at(c.first, s.index).forward(pb, z, rows(cross_q), rows(keep.u.cross_q));
  }
}

// x2 = x1 + cross_o Wo^T + bo;  out = x2 + (gelu(LN2(x2) W0^T + b0) W2^T + b2) gate2
void DitBlock::feed_forward_residual(ProgramBuilder& pb, const BlockWeightsInUse& w,
                                     const BlockSample& s, Buffer x1, Buffer cross_o, Buffer out,
                                     const BlockSaved* saved, Norms& norms) const {
  const BlockSaved keep = saved ? *saved : BlockSaved();
  for (const TokenChunk& c : token_chunks(policy_, s.tokens)) {
    const auto rows = [&](Buffer b) { return b ? pb.rows(b, c.first, c.rows) : Buffer(); };
    const Buffer x2 = keep.x2 ? rows(keep.x2) : rows(x1);
    const Buffer y2 = w.cross_o.at(c.first, s.index)
                          .forward(pb, rows(cross_o), precision_.activation, rows(keep.u.cross_o));
    tap(pb, "cross_attn", s, y2, c.first);
    const ops::NormTables tables = {.mul = modulation_row(pb, w.modulation, scale2),
                                    .add = modulation_row(pb, w.modulation, shift2),
                                    .index = rows(s.timestep_row),
                                    .one_plus = true};
    const Buffer z = residual_normed(pb, rows(x1), y2, {}, x2, tables, w.up).y;
    const Buffer act =
        AppendedAdapter::temp(pb, "act", {c.rows, config_.ffn_dim}, precision_.activation,
                              w.down.appended.columns);  // [R, F]
    const AdaptedLinear up = w.up.at(c.first, s.index);
    if (saved) {
      up.forward_gelu(pb, z, act, rows(keep.pre), rows(keep.u.up));
    } else {
      up.forward_gelu(pb, z, act);
    }
    const Buffer y3 = keep.ffn_out
                          ? rows(keep.ffn_out)
                          : pb.temp("ffn_out", {c.rows, config_.dim}, precision_.activation);
    w.down.at(c.first, s.index).forward(pb, act, y3);
    tap(pb, "ffn", s, y3, c.first);
    const ops::Gate gate = {.table = modulation_row(pb, w.modulation, gate2),
                            .index = rows(s.timestep_row)};
    if (!norms.next) {
      ops::gated_residual(pb, x2, y3, gate, rows(out));
      continue;
    }
    const FirstNorm next = norms.next();
    norms.next_z =
        AppendedAdapter::temp(pb, "norm", pb.shape(x2), precision_.activation, next.room);
    ops::residual_norm_into(pb, x2, y3, gate, rows(out), next.tables, config_.eps, norms.next_z);
  }
}

Buffer DitBlock::forward(ProgramBuilder& pb, const BlockWeightsInUse& w, const BlockSample& s,
                         Buffer x, Activations keep, BlockSaved* saved, Norms& norms) const {
  check(joins_norms(policy_) || (!norms.z && !norms.next), "norms are joined in chunks of tokens");
  const bool keeps_all = saved && keep == Activations::kept;
  const bool keeps_attention = saved && keep != Activations::recomputed;
  const DType act = precision_.activation;

  const Buffer q = full(pb, "q", s, act), k = full(pb, "k", s, act), v = full(pb, "v", s, act);
  AdapterInputs u;
  if (keeps_all) {
    u.self_qkv = adapter_input(pb, s.tokens, {&w.self_q, &w.self_k, &w.self_v});
    u.self_o = adapter_input_beside(pb, s.tokens, w.self_o);
    u.cross_q = adapter_input(pb, s.tokens, {&w.cross_q});
    u.cross_kv = adapter_input(pb, pb.shape(s.context)[0], {&w.cross_k, &w.cross_v});
    u.cross_o = adapter_input_beside(pb, s.tokens, w.cross_o);
    u.up = adapter_input(pb, s.tokens, {&w.up});
  }
  project_qkv(pb, w, s, x, q, k, v, u.self_qkv, norms.z);
  const auto in_place_or = [&](Buffer raw, const char* name) {
    return keeps_all ? pb.temp(name, pb.shape(raw), act) : raw;
  };
  const Qk qn = norm_and_rotate(pb, s, q, w.self_norm_q.weight, true, in_place_or(q, "q_rotated"));
  const Qk kn = norm_and_rotate(pb, s, k, w.self_norm_k.weight, true, in_place_or(k, "k_rotated"));
  const Buffer o = full(pb, "attention", s, act, w.self_o.appended.columns);
  const Buffer lse = pb.temp("lse", {config_.heads, s.tokens}, DType::f32);
  attend(pb, qn.y, kn.y, v, o, lse);
  tap(pb, "sa_q_rope", s, qn.y, 0);
  tap(pb, "sa_k_rope", s, kn.y, 0);
  tap(pb, "sa_v", s, v, 0);
  tap(pb, "sa_out", s, o, 0);

  BlockSaved kept;
  kept.x = x;
  kept.u = u;
  if (keeps_attention) kept.attention = o, kept.lse = lse;
  if (keeps_all) {
    kept.q = q, kept.k = k, kept.v = v;
    kept.x2 = full(pb, "x2", s, precision_.residual);
    kept.pre = pb.temp("pre", {s.tokens, config_.ffn_dim}, act);
    if (gates_train(w)) {
      kept.self_out = full(pb, "self_out", s, act);
      kept.ffn_out = full(pb, "ffn_out", s, act);
    }
  }

  const Buffer x1 = saved ? full(pb, "x1", s, precision_.residual) : x;
  const Buffer cross_q = full(pb, "cross_q", s, act);
  attention_residual(pb, w, s, x, o, x1, cross_q, kept);
  Buffer cross_k, cross_v;
  project_context(pb, w, s, u.cross_kv, cross_k, cross_v);
  const Qk cqn = norm_and_rotate(pb, s, cross_q, w.cross_norm_q.weight, false,
                                 in_place_or(cross_q, "cross_q_normed"));
  const Qk ckn = norm_and_rotate(pb, s, cross_k, w.cross_norm_k.weight, false,
                                 in_place_or(cross_k, "cross_k_normed"));
  const Buffer cross_o = full(pb, "cross_attention", s, act, w.cross_o.appended.columns);
  const Buffer cross_lse = pb.temp("cross_lse", {config_.heads, s.tokens}, DType::f32);
  attend(pb, cqn.y, ckn.y, cross_v, cross_o, cross_lse);
  tap(pb, "ca_q", s, cqn.y, 0);
  tap(pb, "ca_k", s, ckn.y, 0);
  tap(pb, "ca_v", s, cross_v, 0);
  tap(pb, "ca_out", s, cross_o, 0);
  if (keeps_all) {
    kept.x1 = x1;
    kept.cross_q = cross_q, kept.cross_k = cross_k, kept.cross_v = cross_v;
    kept.cross_attention = cross_o, kept.cross_lse = cross_lse;
  }
  const Buffer out = keeps_all ? full(pb, "x", s, precision_.residual) : x1;
  feed_forward_residual(pb, w, s, x1, cross_o, out, saved ? &kept : nullptr, norms);
  if (saved) *saved = kept;
  return out;
}

}  // namespace ballast::wan
