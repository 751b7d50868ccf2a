#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/to_size.h"
#include "ops/attention/attention.h"
#include "ops/copy.h"
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

// What a run decides: how many keys take part, what is dropped.
struct RunTime {
  std::int64_t keys = 0;
  Buffer lengths;
  std::int64_t samples = 1, heads = 0, first = 0;  // heads: of all samples
  std::int64_t sample = 0;                         // the first, among the lengths
  bool grows = false;
  double dropout = 0;
  RandomSite site;

  std::int64_t kv_length(const Bindings& b) const {
    if (grows) return b.step().step + 1;
    return lengths && samples == 1 ? length_of(b, sample) : keys;
  }
  std::int64_t length_of(const Bindings& b, std::int64_t i) const {
    return lengths ? b.in(lengths).as<std::int32_t>()[i] : keys;
  }
  AttentionDropout drop(const Bindings& b) const {
    if (dropout == 0) return {};
    return {.probability = dropout,
            .source = site.at(b.step()),
            .first_head = samples == 1 ? first : 0};
  }
  // lengths_known: not before the first run.
  AttentionSamples of_samples(const Bindings& b, bool lengths_known) const {
    AttentionSamples s;
    if (samples == 1) return s;
    s.heads = heads / samples;
    s.first = first;
    for (std::int64_t i = 0; i < samples; ++i) {
      const auto at = to_size(i);
      s.lengths[at] = static_cast<std::int32_t>(lengths_known ? length_of(b, sample + i) : keys);
      RandomSite own = site;
      own.sample += i;
      s.sites[at] = own.at(b.step()).site;
    }
    return s;
  }
};

RunTime run_time(const AttentionOptions& o, std::int64_t keys, std::int64_t heads,
                 std::int64_t first, std::int64_t sample) {
  return {.keys = keys,
          .lengths = o.lengths,
          .samples = o.samples,
          .heads = heads,
          .first = first,
          .sample = sample,
          .grows = o.grows,
          .dropout = o.dropout,
          .site = o.site};
}

bool whole_on_gpu(const ProgramBuilder& pb, const AttentionOptions& o) {
  return o.whole_scores && pb.backend().device == Device::cuda;
}

// visit(options, number of the first sample, samples): all at once, or as many as a call takes.
template <class Visit>
void for_sample_groups(const ProgramBuilder& pb, const AttentionOptions& options, Visit&& visit) {
  const std::int64_t most = whole_on_gpu(pb, options) ? AttentionSamples::kMax : 1;
  for (std::int64_t first = 0; first < options.samples; first += most) {
    AttentionOptions part = options;
    part.samples = std::min(most, options.samples - first);
    part.site.sample += first;
    visit(part, first);
  }
}

std::int64_t key_count(ProgramBuilder& pb, Buffer k, const AttentionOptions& options) {
  return options.kv_length < 0 ? pb.shape(k)[0] : options.kv_length;
}

// A product of [Lq, D] and [D, keys], or one of that size, for every head.
double product_flops(const Shape& q, std::int64_t keys) {
  return 2.0 * static_cast<double>(q.elements()) * static_cast<double>(keys);
}

// Fused kernels have a quarter of the speed of those that profiles are about (measured on an H200).
// Without them the time goes into moving scores, bytes for each: forward writes and reads S and P,
// backward S, dP, P and dS, the last once more.
Cost scores_cost(const Shape& q, DType dtype, std::int64_t keys, bool backward) {
  if (attention_is_fused(q[2], dtype)) {
    return {.work = backward ? Work::attention_backward : Work::attention,
            .flops = 4 * (backward ? 5 : 2) * product_flops(q, keys)};
  }
  const double scores = static_cast<double>(q[0] * q[1] * keys);
  return {.work = Work::memory, .bytes = scores * (backward ? 26 : 12)};
}

}  // namespace

AttentionOut attention(ProgramBuilder& pb, Buffer q, Buffer k, Buffer v,
                       const AttentionOptions& options) {
  const Buffer o = pb.temp("o", pb.shape(q), pb.dtype(q));                          // [Lq, H, D]
  const Buffer lse = pb.temp("lse", {pb.shape(q)[1], pb.shape(q)[0]}, DType::f32);  // [H, Lq]
  attention_into(pb, q, k, v, o, lse, options);
  return {o, lse};
}

namespace {

void attention_of_samples(ProgramBuilder& pb, Buffer q, Buffer k, Buffer v, Buffer o, Buffer lse,
                          const AttentionOptions& options, std::int64_t first_sample) {
  const std::int64_t keys = key_count(pb, k, options), heads = pb.shape(q)[1];
  for_head_groups(heads, options.heads_per_group, [&](std::int64_t h, std::int64_t n) {
    const Buffer gq = pb.slice(q, 1, h, n), gk = pb.slice(k, 1, h, n), gv = pb.slice(v, 1, h, n);
    const Buffer go = pb.slice(o, 1, h, n), glse = pb.rows(lse, h, n);
    const bool whole = whole_on_gpu(pb, options);
    const Buffer ws =
        pb.workspace(whole ? attention_scores_workspace(pb.shape(gq), pb.shape(k)[0], pb.dtype(gq))
                           : attention_workspace(pb.shape(gq), pb.dtype(gq), pb.backend()));
    const bool own_bias = options.bias && options.samples == 1;
    const Buffer bias = own_bias ? pb.rows(options.bias, h, n) : options.bias;
    const RunTime time = run_time(options, keys, heads, h, first_sample);
    const auto call = [=, scale = options.scale, causal = options.causal](const Bindings& b,
                                                                          bool runs) {
      return Attention{.q = b.in(gq),
                       .k = b.in(gk),
                       .v = b.in(gv),
                       .o = b.out(go),
                       .lse = b.out(glse),
                       .workspace = b.out_if(ws),
                       .scale = scale,
                       .kv_length = runs || time.grows ? time.kv_length(b) : keys,
                       .bias = b.in_if(bias),
                       .causal = causal,
                       .dropout = time.drop(b),
                       .whole_scores = whole,
                       .samples = time.of_samples(b, runs)};
    };
    pb.emit(
        "attention",
        {.reads = {gq, gk, gv, bias, time.lengths},
         .writes = {go, glse, ws},
         .cost =
             whole ? scores_cost(pb.shape(gq), pb.dtype(gq), keys, false)
                   : Cost{.work = Work::attention, .flops = 2 * product_flops(pb.shape(gq), keys)}},
        [=](const Bindings& b) { attention(call(b, true), b.stream()); },
        [=](const Bindings& b) { prepare_attention(call(b, false), b.stream()); });
  });
}

void backward_of_samples(ProgramBuilder& pb, const AttentionSaved& saved, Buffer dout, Buffer dq,
                         Buffer dk, Buffer dv, const AttentionOptions& options,
                         std::int64_t first_sample) {
  const std::int64_t keys = key_count(pb, saved.k, options), all = pb.shape(saved.q)[1];
  for_head_groups(all, options.heads_per_group, [&](std::int64_t h, std::int64_t n) {
    const auto heads = [&](Buffer x) { return pb.slice(x, 1, h, n); };
    const AttentionSaved s = {.q = heads(saved.q),
                              .k = heads(saved.k),
                              .v = heads(saved.v),
                              .o = heads(saved.o),
                              .lse = pb.rows(saved.lse, h, n)};
    // A gradient in the place of what it is of comes there when the group has read that.
    const auto place = [&](const char* name, Buffer d, Buffer of) {
      const bool shared = pb.set().spec(d).root == pb.set().spec(of).root;
      return shared ? pb.temp(name, pb.shape(of), pb.dtype(of)) : heads(d);
    };
    const Buffer gdout = heads(dout), gdq = place("dq", dq, s.q), gdk = place("dk", dk, s.k),
                 gdv = place("dv", dv, s.v);
    const bool whole = whole_on_gpu(pb, options);
    const Buffer ws = pb.workspace(
        whole ? attention_backward_scores_workspace(pb.shape(s.q), pb.shape(s.k)[0], pb.dtype(s.q))
              : attention_backward_workspace(pb.shape(s.q), keys, pb.dtype(s.q), pb.backend()));
    const RunTime time = run_time(options, keys, all, h, first_sample);
    const auto own = [&](Buffer b) { return b && options.samples == 1 ? pb.rows(b, h, n) : b; };
    const Buffer bias = own(options.bias), dbias = own(options.dbias);
    const auto call = [=, scale = options.scale, causal = options.causal,
                       deterministic = pb.backend().deterministic](const Bindings& b, bool runs) {
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
                               .kv_length = runs ? time.kv_length(b) : keys,
                               .deterministic = deterministic,
                               .bias = b.in_if(bias),
                               .dbias = b.out_if(dbias),
                               .causal = causal,
                               .dropout = time.drop(b),
                               .whole_scores = whole,
                               .samples = time.of_samples(b, runs)};
    };
    pb.emit(
        "attention_backward",
        {.reads = {s.q, s.k, s.v, s.o, s.lse, gdout, bias, dbias, time.lengths},
         .writes = {gdq, gdk, gdv, dbias, ws},
         .cost = whole ? scores_cost(pb.shape(s.q), pb.dtype(s.q), keys, true)
                       : Cost{.work = Work::attention_backward,
                              .flops = 5 * product_flops(pb.shape(s.q), keys)}},
        [=](const Bindings& b) { attention_backward(call(b, true), b.stream()); },
        [=](const Bindings& b) { prepare_attention_backward(call(b, false), b.stream()); });
    for (const auto& [made, d] : {std::pair(gdq, dq), std::pair(gdk, dk), std::pair(gdv, dv)}) {
      if (pb.set().spec(made).root != pb.set().spec(d).root) copy(pb, made, heads(d));
    }
  });
}

}  // namespace

void attention_into(ProgramBuilder& pb, Buffer q, Buffer k, Buffer v, Buffer o, Buffer lse,
                    const AttentionOptions& options) {
  const std::int64_t heads = pb.shape(q)[1] / options.samples;
  for_sample_groups(pb, options, [&](const AttentionOptions& part, std::int64_t first) {
    const std::int64_t n = part.samples * heads;
    const auto own = [&](Buffer x) { return pb.slice(x, 1, first * heads, n); };
    attention_of_samples(pb, own(q), own(k), own(v), own(o), pb.rows(lse, first * heads, n), part,
                         first);
  });
}

void attention_backward(ProgramBuilder& pb, const AttentionSaved& saved, Buffer dout, Buffer dq,
                        Buffer dk, Buffer dv, const AttentionOptions& options) {
  const std::int64_t heads = pb.shape(saved.q)[1] / options.samples;
  for_sample_groups(pb, options, [&](const AttentionOptions& part, std::int64_t first) {
    const std::int64_t n = part.samples * heads;
    const auto own = [&](Buffer x) { return pb.slice(x, 1, first * heads, n); };
    backward_of_samples(pb,
                        {.q = own(saved.q),
                         .k = own(saved.k),
                         .v = own(saved.v),
                         .o = own(saved.o),
                         .lse = pb.rows(saved.lse, first * heads, n)},
                        own(dout), own(dq), own(dk), own(dv), part, first);
  });
}

}  // namespace ballast::ops
