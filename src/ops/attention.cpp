#include "ops/attention.h"

#include <algorithm>

#include "core/error.h"
#include "core/simd.h"
#include "core/thread_pool.h"
#include "ops/attention_cpu.h"
#include "plan/bindings.h"

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

void check_workspace(const char* op, const TensorView& workspace, std::int64_t needed) {
  check(static_cast<std::int64_t>(workspace.bytes()) >= needed,
        "{}: the workspace has {} bytes, {} are needed", op, workspace.bytes(), needed);
}

cpu::HeadsIn heads_in(const ConstTensorView& x) { return {x.data, x.strides[0], x.strides[1]}; }
cpu::HeadsOut heads_out(const TensorView& x) { return {x.data, x.strides[0], x.strides[1]}; }

float* floats(const TensorView& x) { return reinterpret_cast<float*>(x.data); }

// Calls record(first head, heads) for each group.
template <class F>
void for_head_groups(std::int64_t heads, std::int64_t per_group, F&& record) {
  check(per_group >= 0, "attention: heads_per_group is {}", per_group);
  const std::int64_t step = per_group == 0 ? std::max<std::int64_t>(heads, 1) : per_group;
  for (std::int64_t head = 0; head < heads; head += step) {
    record(head, std::min(step, heads - head));
  }
}

std::int64_t key_count(ProgramBuilder& pb, Buffer k, const AttentionOptions& options) {
  return options.kv_length < 0 ? pb.shape(k)[0] : options.kv_length;
}

// A product of [Lq, D] and [D, keys], or one of that size, for every head.
double product_flops(const Shape& q, std::int64_t keys) {
  return 2.0 * static_cast<double>(q.elements()) * static_cast<double>(keys);
}

}  // namespace

std::int64_t attention_workspace(const Shape& q, int threads) {
  const std::int64_t tasks = (q[0] + cpu::kForwardQueryTile - 1) / cpu::kForwardQueryTile * q[1];
  return std::min<std::int64_t>(tasks, threads) * forward_scratch(q[0], q[2]).floats * 4;
}

std::int64_t attention_backward_workspace(const Shape& q, DType dtype, int threads) {
  return std::min<std::int64_t>(q[1], threads) * backward_scratch(q[0], q[2], dtype).floats * 4;
}

void attention(const Attention& a, Stream stream) {
  check_inputs("attention", a.q, a.k, a.v, a.lse, a.kv_length);
  check_heads("attention", "o", a.o, a.q.shape, a.q.dtype);
  on_device(
      a.q.device,
      [&] {
        check_workspace("attention", a.workspace,
                        attention_workspace(a.q.shape, stream.pool->threads()));
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
                                       .bf16 = a.q.dtype == DType::bf16};
        BALLAST_ISA_CALL(cpu, attention, call, *stream.pool);
      },
      [&] { fail(ErrorCode::device, "attention has no CUDA kernel in this build"); });
}

void attention_backward(const AttentionBackward& a, Stream stream) {
  const char* op = "attention_backward";
  check_inputs(op, a.q, a.k, a.v, a.lse, a.kv_length);
  check_heads(op, "o", a.o, a.q.shape, a.q.dtype);
  check_heads(op, "dout", a.dout, a.q.shape, a.q.dtype);
  check_heads(op, "dq", a.dq, a.q.shape, a.q.dtype);
  check_heads(op, "dk", a.dk, a.k.shape, a.q.dtype);
  check_heads(op, "dv", a.dv, a.k.shape, a.q.dtype);
  on_device(
      a.q.device,
      [&] {
        check_workspace(op, a.workspace,
                        attention_backward_workspace(a.q.shape, a.q.dtype, stream.pool->threads()));
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
            .bf16 = a.q.dtype == DType::bf16};
        BALLAST_ISA_CALL(cpu, attention_backward, call, *stream.pool);
      },
      [&] { fail(ErrorCode::device, "attention_backward has no CUDA kernel in this build"); });
}

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
    const Buffer ws = pb.workspace(attention_workspace(pb.shape(gq), pb.backend().threads));
    pb.emit("attention",
            {.reads = {gq, gk, gv},
             .writes = {go, glse, ws},
             .cost = {.work = Work::attention, .flops = 2 * product_flops(pb.shape(gq), keys)}},
            [=, scale = options.scale](const Bindings& b) {
              attention({.q = b.in(gq),
                         .k = b.in(gk),
                         .v = b.in(gv),
                         .o = b.out(go),
                         .lse = b.out(glse),
                         .workspace = b.out_if(ws),
                         .scale = scale,
                         .kv_length = keys},
                        b.stream());
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
        const Buffer ws = pb.workspace(
            attention_backward_workspace(pb.shape(s.q), pb.dtype(s.q), pb.backend().threads));
        pb.emit(
            "attention_backward",
            {.reads = {s.q, s.k, s.v, s.o, s.lse, gdout},
             .writes = {gdq, gdk, gdv, ws},
             .cost = {.work = Work::attention, .flops = 5 * product_flops(pb.shape(s.q), keys)}},
            [=, scale = options.scale](const Bindings& b) {
              attention_backward({.q = b.in(s.q),
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
                                  .kv_length = keys},
                                 b.stream());
            });
      });
}

}  // namespace ballast::ops
