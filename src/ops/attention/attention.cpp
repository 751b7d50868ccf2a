#include "ops/attention/attention.h"

#include <algorithm>

#include "core/error.h"
#include "core/simd.h"
#include "core/thread_pool.h"
#include "core/to_size.h"
#include "ops/attention/attention_cpu.h"
#include "ops/attention/attention_cuda.h"
#include "ops/attention/attention_cuda_workspace.h"
#include "ops/attention/attention_products.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void attention(const ForwardCall& a, ThreadPool& pool))
BALLAST_PER_ISA(void attention_backward(const BackwardCall& a, ThreadPool& pool))
}  // namespace cpu

namespace {

// Places arrays one behind the other, each on a cache line of its own.
class Layout {
 public:
  std::int64_t take(std::int64_t floats) {
    const std::int64_t at = floats_;
    floats_ += (floats + 15) / 16 * 16;
    return at;
  }
  std::int64_t floats() const { return floats_; }

 private:
  std::int64_t floats_ = 0;
};

// Stride of tiles that are D wide: columns for the widest machine, 16 more for the reason that
// kScoreStride has.
std::int64_t tile_row(std::int64_t width) { return (width + 31) / 32 * 32 + 16; }

// Short inputs need less than a full tile. Kernels round rows up to their step, which divides 48 on
// every machine, as do both query tiles.
std::int64_t tile_rows(std::int64_t tile, std::int64_t rows) {
  return std::min(tile, (rows + 47) / 48 * 48);
}

cpu::ForwardScratch forward_scratch(std::int64_t queries, std::int64_t width) {
  Layout layout;
  cpu::ForwardScratch s;
  const std::int64_t rows = tile_rows(cpu::kForwardQueryTile, queries);
  s.row = tile_row(width);
  s.q = layout.take(rows * s.row);
  s.kt = layout.take(s.row * cpu::kScoreStride);
  s.v = layout.take(cpu::kKeyTile * s.row);
  s.s = layout.take(rows * cpu::kScoreStride);
  s.o = layout.take(rows * s.row);
  s.max = layout.take(rows);
  s.sum = layout.take(rows);
  s.floats = layout.floats();
  return s;
}

cpu::BackwardScratch backward_scratch(std::int64_t queries, std::int64_t width, DType dtype) {
  Layout layout;
  cpu::BackwardScratch s;
  const std::int64_t rows = tile_rows(cpu::kBackwardQueryTile, queries);
  s.row = tile_row(width);
  s.q = layout.take(rows * s.row);
  s.dout = layout.take(rows * s.row);
  s.dq = layout.take(rows * s.row);
  s.k = layout.take(cpu::kKeyTile * s.row);
  s.kt = layout.take(s.row * cpu::kScoreStride);
  s.vt = layout.take(s.row * cpu::kScoreStride);
  s.dk = layout.take(cpu::kKeyTile * s.row);
  s.dv = layout.take(cpu::kKeyTile * s.row);
  s.p = layout.take(rows * cpu::kScoreStride);
  s.ds = layout.take(rows * cpu::kScoreStride);
  s.delta = layout.take(queries);
  s.dq_sum = layout.take(dtype == DType::f32 ? 0 : queries * width);
  s.floats = layout.floats();
  return s;
}

void check_heads(const char* op, const char* name, const ConstTensorView& x, const Shape& shape,
                 DType dtype) {
  check(x.shape == shape, "{}: {} is {}, expected {}", op, name, x.shape, shape);
  check(x.dtype == dtype, "{}: {} is {}, q is {}", op, name, x.dtype, dtype);
  check(x.shape[2] == 1 || x.strides[2] == 1, "{}: {} has gaps between the elements of a head", op,
        name);
}

void check_inputs(const char* op, const ConstTensorView& q, const ConstTensorView& k,
                  const ConstTensorView& v, const ConstTensorView& lse, std::int64_t kv_length) {
  check(q.dtype == DType::f32 || q.dtype == DType::bf16, "{}: q is {}, expected f32 or bf16", op,
        q.dtype);
  check(q.shape.rank() == 3 && k.shape.rank() == 3 && q.shape[2] >= 1,
        "{}: q is {} and k is {}, expected [L, H, D]", op, q.shape, k.shape);
  check_heads(op, "q", q, q.shape, q.dtype);
  check_heads(op, "k", k, {k.shape[0], q.shape[1], q.shape[2]}, q.dtype);
  check_heads(op, "v", v, k.shape, q.dtype);
  check(lse.dtype == DType::f32 && lse.shape == Shape({q.shape[1], q.shape[0]}),
        "{}: lse is {} {}, expected f32 {}", op, lse.dtype, lse.shape,
        Shape({q.shape[1], q.shape[0]}));
  check(lse.shape[1] <= 1 || lse.strides[1] == 1, "{}: lse has gaps between queries", op);
  check(kv_length >= 0 && kv_length <= k.shape[0], "{}: kv_length {} of {} keys", op, kv_length,
        k.shape[0]);
}

void check_bias(const char* op, const ConstTensorView& bias, const ConstTensorView& q,
                const ConstTensorView& k, const AttentionSamples& samples) {
  if (!bias) return;
  const Shape shape = {samples.heads > 0 ? samples.heads : q.shape[1], q.shape[0] + k.shape[0] - 1};
  check(bias.dtype == DType::f32 && bias.shape == shape, "{}: the bias is {} {}, expected f32 {}",
        op, bias.dtype, bias.shape, shape);
  check(bias.shape[1] <= 1 || bias.strides[1] == 1, "{}: the bias of a head has gaps", op);
}

template <class Call>
void check_samples(const char* op, const Call& a) {
  const AttentionSamples& s = a.samples;
  if (s.heads == 0) return;
  check(a.whole_scores && a.q.device == Device::cuda, "{}: several samples in one call", op);
  const std::int64_t end = s.first + a.q.shape[1];
  check(s.first >= 0 && end <= AttentionSamples::kMax * s.heads, "{}: heads {} to {} of {} each",
        op, s.first, end, s.heads);
  for (std::int64_t i = s.first / s.heads; i < (end + s.heads - 1) / s.heads; ++i) {
    const std::int32_t length = s.lengths[to_size(i)];
    check(length >= 0 && length <= a.k.shape[0], "{}: sample {} has {} of {} keys", op, i, length,
          a.k.shape[0]);
  }
}

void check_call(const Attention& a) {
  check_inputs("attention", a.q, a.k, a.v, a.lse, a.kv_length);
  check_heads("attention", "o", a.o, a.q.shape, a.q.dtype);
  check_bias("attention", a.bias, a.q, a.k, a.samples);
  check_samples("attention", a);
}

void check_call(const AttentionBackward& a) {
  const char* op = "attention_backward";
  check_inputs(op, a.q, a.k, a.v, a.lse, a.kv_length);
  check_heads(op, "o", a.o, a.q.shape, a.q.dtype);
  check_heads(op, "dout", a.dout, a.q.shape, a.q.dtype);
  check_heads(op, "dq", a.dq, a.q.shape, a.q.dtype);
  check_heads(op, "dk", a.dk, a.k.shape, a.q.dtype);
  check_heads(op, "dv", a.dv, a.k.shape, a.q.dtype);
  check_bias(op, a.bias, a.q, a.k, a.samples);
  check_bias(op, a.dbias, a.q, a.k, a.samples);
  check_samples(op, a);
}

void check_workspace(const char* op, const TensorView& workspace, std::int64_t needed) {
  check(static_cast<std::int64_t>(workspace.bytes()) >= needed,
        "{}: the workspace has {} bytes, {} are needed", op, workspace.bytes(), needed);
}

cpu::HeadsIn heads_in(const ConstTensorView& x) { return {x.data, x.strides[0], x.strides[1]}; }
cpu::HeadsOut heads_out(const TensorView& x) { return {x.data, x.strides[0], x.strides[1]}; }

float* floats(const TensorView& x) { return reinterpret_cast<float*>(x.data); }

cpu::BiasIn bias_in(const ConstTensorView& x) {
  if (!x) return {};
  return {reinterpret_cast<const float*>(x.data), x.strides[0]};
}

cpu::DropRule drop_rule(const AttentionDropout& d) {
  if (d.probability == 0) return {};
  return {.on = true,
          .source = d.source,
          .threshold = static_cast<std::uint32_t>(d.probability * 0x1p32),
          .scale = static_cast<float>(1 / (1 - d.probability)),
          .first_head = d.first_head};
}

// Every score's own entry of a bias by distance.
cuda::View score_view(const ConstTensorView& bias, const ConstTensorView& q,
                      const ConstTensorView& k) {
  cuda::View v;
  if (!bias) return v;
  v.data = const_cast<std::byte*>(bias.data + (q.shape[0] - 1) * 4);
  v.rank = 3;
  v.shape[0] = q.shape[1], v.shape[1] = q.shape[0], v.shape[2] = k.shape[0];
  v.strides[0] = bias.strides[0], v.strides[1] = -1, v.strides[2] = 1;
  return v;
}

cuda::AttentionDrop gpu_drop(const AttentionDropout& d) {
  const cpu::DropRule r = drop_rule(d);
  return {.on = r.on,
          .source = cuda::random_key(r.source),
          .threshold = r.threshold,
          .scale = r.scale,
          .first_head = r.first_head};
}

template <class Call>
cuda::ScoreSamples gpu_samples(const Call& a) {
  static_assert(cuda::ScoreSamples::kMax == AttentionSamples::kMax);
  cuda::ScoreSamples s;
  if (!a.whole_scores) return s;
  s.heads = a.samples.heads > 0 ? a.samples.heads : a.q.shape[1];
  s.first = a.samples.first;
  s.lengths[0] = static_cast<std::int32_t>(a.kv_length);
  s.sites[0] = a.dropout.source.site;
  if (a.samples.heads == 0) return s;
  std::ranges::copy(a.samples.lengths, s.lengths);
  std::ranges::copy(a.samples.sites, s.sites);
  return s;
}

cuda::Attention gpu_call(const Attention& a) {
  return {.q = a.q,
          .k = a.k,
          .v = a.v,
          .o = a.o,
          .lse = a.lse,
          .workspace = a.workspace,
          .bias = score_view(a.bias, a.q, a.k),
          .scale = a.scale,
          .kv_length = a.kv_length,
          .causal = a.causal,
          .whole_scores = a.whole_scores,
          .drop = gpu_drop(a.dropout),
          .samples = gpu_samples(a)};
}

cuda::AttentionBackward gpu_call(const AttentionBackward& a) {
  return {.q = a.q,
          .k = a.k,
          .v = a.v,
          .o = a.o,
          .lse = a.lse,
          .dout = a.dout,
          .dq = a.dq,
          .dk = a.dk,
          .dv = a.dv,
          .workspace = a.workspace,
          .bias = score_view(a.bias, a.q, a.k),
          .dbias = {},
          .dbias_sums = a.dbias,
          .scale = a.scale,
          .kv_length = a.kv_length,
          .causal = a.causal,
          .deterministic = a.deterministic,
          .whole_scores = a.whole_scores,
          .drop = gpu_drop(a.dropout),
          .samples = gpu_samples(a)};
}

}  // namespace

std::int64_t attention_workspace(const Shape& q, DType dtype, const Backend& backend) {
  if (backend.device == Device::cuda) {
    return cuda::attention_parts(q, dtype, backend.sm).bytes();
  }
  const std::int64_t tasks = (q[0] + cpu::kForwardQueryTile - 1) / cpu::kForwardQueryTile * q[1];
  return std::min<std::int64_t>(tasks, backend.threads) * forward_scratch(q[0], q[2]).floats * 4;
}

std::int64_t attention_backward_workspace(const Shape& q, std::int64_t keys, DType dtype,
                                          const Backend& backend) {
  if (backend.device == Device::cuda) {
    return cuda::attention_backward_parts(q, keys, dtype, backend.sm, backend.deterministic)
        .bytes();
  }
  return std::min<std::int64_t>(q[1], backend.threads) *
         backward_scratch(q[0], q[2], dtype).floats * 4;
}

bool attention_is_fused(std::int64_t width, DType dtype) {
  return cuda::fused_has_attention(width, dtype);
}

std::int64_t attention_scores_workspace(const Shape& q, std::int64_t keys, DType dtype) {
  if (attention_is_fused(q[2], dtype)) return 0;
  return cuda::score_offsets(q, keys, dtype, false).bytes;
}

std::int64_t attention_backward_scores_workspace(const Shape& q, std::int64_t keys, DType dtype) {
  if (attention_is_fused(q[2], dtype)) {
    return cuda::fused_backward_parts(q[0], q[1], keys).bytes;
  }
  return cuda::score_offsets(q, keys, dtype, true).bytes;
}

void attention(const Attention& a, Stream stream) {
  check_call(a);
  on_device(
      a.q.device,
      [&] {
        check_workspace(
            "attention", a.workspace,
            attention_workspace(a.q.shape, a.q.dtype, {.threads = stream.pool->threads()}));
        const cpu::ForwardCall call = {.q = heads_in(a.q),
                                       .k = heads_in(a.k),
                                       .v = heads_in(a.v),
                                       .o = heads_out(a.o),
                                       .lse = floats(a.lse),
                                       .lse_head = a.lse.strides[0],
                                       .workspace = floats(a.workspace),
                                       .scratch = forward_scratch(a.q.shape[0], a.q.shape[2]),
                                       .queries = a.q.shape[0],
                                       .keys = a.kv_length,
                                       .heads = a.q.shape[1],
                                       .width = a.q.shape[2],
                                       .scale = a.scale,
                                       .bf16 = a.q.dtype == DType::bf16,
                                       .bias = bias_in(a.bias),
                                       .causal = a.causal,
                                       .drop = drop_rule(a.dropout)};
        BALLAST_ISA_CALL(cpu, attention, call, *stream.pool);
      },
      [&] { cuda::attention(gpu_call(a), *stream.queue); });
}

void attention_backward(const AttentionBackward& a, Stream stream) {
  check_call(a);
  on_device(
      a.q.device,
      [&] {
        check_workspace("attention_backward", a.workspace,
                        attention_backward_workspace(a.q.shape, a.kv_length, a.q.dtype,
                                                     {.threads = stream.pool->threads()}));
        const cpu::BackwardCall call = {
            .q = heads_in(a.q),
            .k = heads_in(a.k),
            .v = heads_in(a.v),
            .o = heads_in(a.o),
            .dout = heads_in(a.dout),
            .lse = reinterpret_cast<const float*>(a.lse.data),
            .lse_head = a.lse.strides[0],
            .dq = heads_out(a.dq),
            .dk = heads_out(a.dk),
            .dv = heads_out(a.dv),
            .workspace = floats(a.workspace),
            .scratch = backward_scratch(a.q.shape[0], a.q.shape[2], a.q.dtype),
            .queries = a.q.shape[0],
            .keys = a.kv_length,
            .all_keys = a.k.shape[0],
            .heads = a.q.shape[1],
            .width = a.q.shape[2],
            .scale = a.scale,
            .bf16 = a.q.dtype == DType::bf16,
            .bias = bias_in(a.bias),
            .dbias = a.dbias ? cpu::BiasOut{floats(a.dbias), a.dbias.strides[0]} : cpu::BiasOut(),
            .causal = a.causal,
            .drop = drop_rule(a.dropout)};
        BALLAST_ISA_CALL(cpu, attention_backward, call, *stream.pool);
      },
      [&] { cuda::attention_backward(gpu_call(a), *stream.queue); });
}

void prepare_attention(const Attention& a, Stream stream) {
  check_call(a);
  on_device(
      a.q.device, [] {}, [&] { cuda::prepare_attention(gpu_call(a), *stream.queue); });
}

void prepare_attention_backward(const AttentionBackward& a, Stream stream) {
  check_call(a);
  on_device(
      a.q.device, [] {}, [&] { cuda::prepare_attention_backward(gpu_call(a), *stream.queue); });
}

}  // namespace ballast::ops
