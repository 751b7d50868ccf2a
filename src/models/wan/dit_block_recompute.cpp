// Recompute: backward begins with the parts of forward that the policy did not keep.
#include "models/wan/dit_block.h"

namespace ballast::wan {

// Self-attention's operands, kept or computed again. In halves the raw q and k give their places to
// the normalised ones: backward computes them once more, chunk by chunk.
void DitBlock::restore_self(ProgramBuilder& pb, const BlockWeightsInUse& w, const BlockSample& s,
                            BlockSaved& r, Qk& q, Qk& k) const {
  const DType act = precision_.activation;
  const bool in_place = policy_.split_backward && !r.q;
  if (!r.q) {
    r.q = full(pb, "q", s, act), r.k = full(pb, "k", s, act), r.v = full(pb, "v", s, act);
    r.u.self_qkv = adapter_input(pb, s.tokens, {&w.self_q, &w.self_k, &w.self_v});
    project_qkv(pb, w, s, r.x, r.q, r.k, r.v, r.u.self_qkv);
  }
  const auto normed = [&](Buffer raw, Buffer gain) {
    return norm_and_rotate(pb, s, raw, gain, true,
                           in_place ? raw : pb.temp("normed", pb.shape(raw), act));
  };
  q = normed(r.q, w.self_norm_q.weight);
  k = normed(r.k, w.self_norm_k.weight);
  if (in_place) r.q = r.k = {};
}

// Everything backward reads, kept or computed again, except what is local to a chunk. In halves
// self-attention's operands are left to its own backward pass.
BlockSaved DitBlock::restore(ProgramBuilder& pb, const BlockWeightsInUse& w, const BlockSample& s,
                             const BlockSaved& saved, Qk& q, Qk& k, Qk& cq, Qk& ck) const {
  const DType act = precision_.activation;
  const auto normed = [&](Buffer raw, Buffer gain) {
    return norm_and_rotate(pb, s, raw, gain, false, pb.temp("normed", pb.shape(raw), act));
  };
  BlockSaved r = saved;
  if (!policy_.split_backward || !r.attention) restore_self(pb, w, s, r, q, k);
  if (!r.attention) {
    r.attention = full(pb, "attention", s, act, w.self_o.appended.columns);
    r.lse = pb.temp("lse", {config_.heads, s.tokens}, DType::f32);
    attend(pb, q.y, k.y, r.v, r.attention, r.lse);
  }
  if (policy_.split_backward) r.q = saved.q, r.k = saved.k, r.v = saved.v;
  if (!r.x1) {
    r.x1 = full(pb, "x1", s, precision_.residual);
    r.cross_q = full(pb, "cross_q", s, act);
    r.u.self_o = adapter_input_beside(pb, s.tokens, w.self_o);
    r.u.cross_q = adapter_input(pb, s.tokens, {&w.cross_q});
    r.u.cross_kv = adapter_input(pb, pb.shape(s.context)[0], {&w.cross_k, &w.cross_v});
    attention_residual(pb, w, s, r.x, r.attention, r.x1, r.cross_q, r,
                       static_cast<bool>(saved.attention));
    project_context(pb, w, s, r.u.cross_kv, r.cross_k, r.cross_v);
  }
  cq = normed(r.cross_q, w.cross_norm_q.weight);
  ck = normed(r.cross_k, w.cross_norm_k.weight);
  if (!r.cross_attention) {
    r.cross_attention = full(pb, "cross_attention", s, act, w.cross_o.appended.columns);
    r.cross_lse = pb.temp("cross_lse", {config_.heads, s.tokens}, DType::f32);
    attend(pb, cq.y, ck.y, r.cross_v, r.cross_attention, r.cross_lse);
  }
  return r;
}

}  // namespace ballast::wan
