#include <algorithm>

#include "core/error.h"
#include "ops/attention.h"
#include "plan/bindings.h"

namespace ballast::ops {
namespace {

// Calls record(first head, heads) for each group.
template <class F>
void for_head_groups(std::int64_t heads, std::int64_t per_group, F&& record) {
  check(per_group >= 0, "attention: heads_per_group is {}", per_group);
  const std::int64_t step = per_group == 0 ? std::max<std::int64_t>(heads, 1) : per_group;
  for (std::int64_t head = 0; head < heads; head += step) {
    record(head, std::min(step, heads - head));
  }
}

// How many keys take part in a run, and what is dropped.
struct RunTime {
  std::int64_t keys = 0;
  Buffer lengths;
  std::int64_t sample = 0;
  bool grows = false;
  double dropout = 0;
  RandomSite site;
  std::int64_t first_head = 0;

  std::int64_t kv_length(const Bindings& b) const {
    if (grows) return b.step().step + 1;
    return lengths ? b.in(lengths).as<std::int32_t>()[sample] : keys;
  }
  AttentionDropout drop(const Bindings& b) const {
    if (dropout == 0) return {};
    return {.probability = dropout, .source = site.at(b.step()), .first_head = first_head};
  }
};

RunTime run_time(const AttentionOptions& o, std::int64_t keys, std::int64_t first_head) {
  return {.keys = keys,
          .lengths = o.lengths,
          .sample = o.sample,
          .grows = o.grows,
          .dropout = o.dropout,
          .site = o.site,
          .first_head = first_head};
}

std::int64_t key_count(ProgramBuilder& pb, Buffer k, const AttentionOptions& options) {
  return options.kv_length < 0 ? pb.shape(k)[0] : options.kv_length;
}

// A product of [Lq, D] and [D, keys], or one of that size, for every head.
double product_flops(const Shape& q, std::int64_t keys) {
  return 2.0 * static_cast<double>(q.elements()) * static_cast<double>(keys);
}

}  // namespace

AttentionOut attention(ProgramBuilder& pb, Buffer q, Buffer k, Buffer v,
                       const AttentionOptions& options) {
  const Buffer o = pb.temp("o", pb.shape(q), pb.dtype(q));                          // [Lq, H, D]
  const Buffer lse = pb.temp("lse", {pb.shape(q)[1], pb.shape(q)[0]}, DType::f32);  // [H, Lq]
  attention_into(pb, q, k, v, o, lse, options);
  return {o, lse};
}

void attention_into(ProgramBuilder& pb, Buffer q, Buffer k, Buffer v, Buffer o, Buffer lse,
                    const AttentionOptions& options) {
  const std::int64_t keys = key_count(pb, k, options);
  for_head_groups(pb.shape(q)[1], options.heads_per_group, [&](std::int64_t h, std::int64_t n) {
    const Buffer gq = pb.slice(q, 1, h, n), gk = pb.slice(k, 1, h, n), gv = pb.slice(v, 1, h, n);
    const Buffer go = pb.slice(o, 1, h, n), glse = pb.rows(lse, h, n);
    const bool whole = options.whole_scores && pb.backend().device == Device::cuda;
    const Buffer ws =
        pb.workspace(whole ? attention_scores_workspace(pb.shape(gq), pb.shape(k)[0], pb.dtype(gq))
                           : attention_workspace(pb.shape(gq), pb.dtype(gq), pb.backend()));
    const Buffer bias = options.bias ? pb.rows(options.bias, h, n) : Buffer();
    const RunTime time = run_time(options, keys, h);
    const auto call = [=, scale = options.scale, causal = options.causal](const Bindings& b,
                                                                          std::int64_t kv_length) {
      return Attention{.q = b.in(gq),
                       .k = b.in(gk),
                       .v = b.in(gv),
                       .o = b.out(go),
                       .lse = b.out(glse),
                       .workspace = b.out_if(ws),
                       .scale = scale,
                       .kv_length = kv_length,
                       .bias = b.in_if(bias),
                       .causal = causal,
                       .dropout = time.drop(b),
                       .whole_scores = whole};
    };
    pb.emit(
        "attention",
        {.reads = {gq, gk, gv, bias, time.lengths},
         .writes = {go, glse, ws},
         .cost = {.work = Work::attention, .flops = 2 * product_flops(pb.shape(gq), keys)}},
        [=](const Bindings& b) { attention(call(b, time.kv_length(b)), b.stream()); },
        [=](const Bindings& b) {
          prepare_attention(call(b, time.grows ? time.kv_length(b) : keys), b.stream());
        });
  });
}

void attention_backward(ProgramBuilder& pb, const AttentionSaved& saved, Buffer dout, Buffer dq,
                        Buffer dk, Buffer dv, const AttentionOptions& options) {
  const std::int64_t keys = key_count(pb, saved.k, options);
  for_head_groups(
      pb.shape(saved.q)[1], options.heads_per_group, [&](std::int64_t h, std::int64_t n) {
        const auto heads = [&](Buffer x) { return pb.slice(x, 1, h, n); };
        const AttentionSaved s = {.q = heads(saved.q),
                                  .k = heads(saved.k),
                                  .v = heads(saved.v),
                                  .o = heads(saved.o),
                                  .lse = pb.rows(saved.lse, h, n)};
        const Buffer gdout = heads(dout), gdq = heads(dq), gdk = heads(dk), gdv = heads(dv);
        const bool whole = options.whole_scores && pb.backend().device == Device::cuda;
        const Buffer ws = pb.workspace(
            whole ? attention_backward_scores_workspace(pb.shape(s.q), pb.shape(s.k)[0],
                                                        pb.dtype(s.q))
                  : attention_backward_workspace(pb.shape(s.q), keys, pb.dtype(s.q), pb.backend()));
        const RunTime time = run_time(options, keys, h);
        const Buffer bias = options.bias ? pb.rows(options.bias, h, n) : Buffer();
        const Buffer dbias = options.dbias ? pb.rows(options.dbias, h, n) : Buffer();
        const auto call = [=, scale = options.scale, causal = options.causal,
                           deterministic = pb.backend().deterministic](const Bindings& b,
                                                                       std::int64_t kv_length) {
          return AttentionBackward{.q = b.in(s.q),
                                   .k = b.in(s.k),
                                   .v = b.in(s.v),
                                   .o = b.in(s.o),
                                   .lse = b.in(s.lse),
                                   .dout = b.in(gdout),
                                   .dq = b.out(gdq),
                                   .dk = b.out(gdk),
                                   .dv = b.out(gdv),
                                   .workspace = b.out_if(ws),
                                   .scale = scale,
                                   .kv_length = kv_length,
                                   .deterministic = deterministic,
                                   .bias = b.in_if(bias),
                                   .dbias = b.out_if(dbias),
                                   .causal = causal,
                                   .dropout = time.drop(b),
                                   .whole_scores = whole};
        };
        pb.emit(
            "attention_backward",
            {.reads = {s.q, s.k, s.v, s.o, s.lse, gdout, bias, dbias, time.lengths},
             .writes = {gdq, gdk, gdv, dbias, ws},
             .cost = {.work = Work::attention_backward,
                      .flops = 5 * product_flops(pb.shape(s.q), keys)}},
            [=](const Bindings& b) { attention_backward(call(b, time.kv_length(b)), b.stream()); },
            [=](const Bindings& b) { prepare_attention_backward(call(b, keys), b.stream()); });
      });
}

}  // namespace ballast::ops
