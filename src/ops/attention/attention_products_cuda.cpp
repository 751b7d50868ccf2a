#include "core/error.h"
#include "memory/gpu.h"
#include "ops/attention/attention_cuda_workspace.h"
#include "ops/attention/attention_fused_cuda.h"
#include "ops/attention/attention_products.h"
#include "ops/attention/attention_scores_cuda.h"
#include "ops/linear/linear_scratch.h"
#include "ops/linear/matrix_product_cuda.h"

namespace ballast::ops::cuda {
namespace {

// A matrix for every head: [rows, columns] of heads, or of scores.
struct Operand {
  std::byte* data = nullptr;
  std::int64_t row = 0, head = 0;  // elements
  DType dtype = DType::f32;

  bool in_place() const {
    const auto size = static_cast<std::int64_t>(size_of(dtype));
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && row * size % 16 == 0 &&
           head * size % 16 == 0;
  }
};

Operand heads_of(const View& x) {
  return {static_cast<std::byte*>(x.data), x.strides[0], x.strides[1], x.dtype};
}

class Products {
 public:
  Products(GpuQueue& queue, Doing doing, std::int64_t heads, std::byte* workspace)
      : products_(queue.local<MatrixProducts>()),
        doing_(doing),
        heads_(heads),
        workspace_(workspace) {}

  struct Form {
    std::int64_t rows, columns, depth;
    bool left_transposed = false, right_transposed = false;
  };
  // out = alpha left right, for every head.
  void multiply(const Operand& left, const Operand& right, const Operand& out, const Form& form,
                float alpha) {
    ProductKind k;
    k.rows = form.rows, k.columns = form.columns, k.depth = form.depth;
    k.left_stride = left.row, k.right_stride = right.row, k.out_stride = out.row;
    k.batches = heads_;
    k.left_step = left.head, k.right_step = right.head, k.out_step = out.head;
    k.left_transposed = form.left_transposed, k.right_transposed = form.right_transposed;
    k.in = left.dtype, k.out = out.dtype;
    // One choice for all numbers of heads and queries: neither may change a bit.
    k.chosen_rows = kUsualRows, k.chosen_batches = kUsualHeads;
    const bool in_place = left.in_place() && right.in_place() && out.in_place();
    if (doing_ == Doing::prepare) {
      if (in_place) products_.prepare(k);
      return;
    }
    const ProductOperands operands = {.left = left.data,
                                      .right = right.data,
                                      .out = out.data,
                                      .alpha = alpha,
                                      .workspace = workspace_};
    if (in_place) {
      products_.run(k, operands);
    } else {
      products_.run_plainly(k, operands);
    }
  }

 private:
  static constexpr std::int64_t kUsualRows = 512, kUsualHeads = 32;

  MatrixProducts& products_;
  Doing doing_;
  std::int64_t heads_;
  std::byte* workspace_;
};

void check_workspace(const View& workspace, std::int64_t needed) {
  const std::int64_t bytes = workspace ? workspace.elements() : 0;
  check(bytes >= needed, "attention: the workspace has {} bytes, {} are needed", bytes, needed);
}

template <class Call>
ScoreOffsets offsets_of(const Call& a, bool backward) {
  const ScoreOffsets p =
      score_offsets({a.q.shape[0], a.q.shape[1], a.q.shape[2]}, a.k.shape[0], a.q.dtype, backward);
  check_workspace(a.workspace, p.bytes);
  return p;
}

template <class Call>
void check_bias(const Call& a) {
  check(!a.bias || (a.bias.dtype == DType::f32 && a.bias.strides[1] == -1),
        "attention: with whole_scores a bias is one by distance");
}

template <class Call>
bool fused(const Call& a) {
  return fused_has_attention(a.q.shape[2], a.q.dtype);
}

template <class Call>
ScoreRule rule_of(const Call& a, const ScoreOffsets& p) {
  ScoreRule r;
  r.heads = a.q.shape[1], r.queries = a.q.shape[0];
  r.samples = a.samples;
  r.columns = a.k.shape[0], r.stride = p.stride;
  r.bias = static_cast<const float*>(a.bias.data), r.bias_head = a.bias.strides[0];
  r.causal = a.causal;
  r.drop = a.drop;
  return r;
}

// S = scale q k^T, P = weights of it, o = P v.
void by_products(const Attention& a, GpuQueue& queue, Doing doing) {
  if (a.q.elements() == 0 || a.k.shape[0] == 0) return;
  const ScoreOffsets at = offsets_of(a, false);
  auto* const ws = static_cast<std::byte*>(a.workspace.data);
  const std::int64_t queries = a.q.shape[0], keys = a.k.shape[0], width = a.q.shape[2];
  const Operand s = {ws + at.s, at.stride, queries * at.stride, DType::f32};
  const Operand p = {ws + at.p, at.stride, queries * at.stride, a.q.dtype};
  Products products(queue, doing, a.q.shape[1], ws);
  products.multiply(heads_of(a.q), heads_of(a.k), s,
                    {.rows = queries, .columns = keys, .depth = width, .right_transposed = true},
                    a.scale);
  if (doing == Doing::run) {
    SoftenScores soften;
    soften.s = reinterpret_cast<const float*>(s.data);
    soften.p = p.data, soften.dtype = p.dtype;
    soften.lse = static_cast<float*>(a.lse.data), soften.lse_head = a.lse.strides[0];
    soften.rule = rule_of(a, at);
    soften_scores(soften, queue.stream().native);
  }
  products.multiply(p, heads_of(a.v), heads_of(a.o),
                    {.rows = queries, .columns = width, .depth = keys}, 1);
}

// S and dP = dout v^T; P, dS; dv = P^T dout, dk = scale dS^T q, dq = scale dS k.
void backward_by_products(const AttentionBackward& a, GpuQueue& queue, Doing doing) {
  if (a.q.elements() == 0 || a.k.shape[0] == 0) return;
  const ScoreOffsets at = offsets_of(a, true);
  auto* const ws = static_cast<std::byte*>(a.workspace.data);
  const std::int64_t queries = a.q.shape[0], keys = a.k.shape[0], width = a.q.shape[2];
  const auto scores = [&](std::int64_t place, DType dtype) {
    return Operand{ws + place, at.stride, queries * at.stride, dtype};
  };
  const Operand s = scores(at.s, DType::f32), dp = scores(at.dp, DType::f32);
  const Operand p = scores(at.p, a.q.dtype), ds = scores(at.ds, a.q.dtype);
  Products products(queue, doing, a.q.shape[1], ws);
  const Products::Form to_scores = {
      .rows = queries, .columns = keys, .depth = width, .right_transposed = true};
  products.multiply(heads_of(a.q), heads_of(a.k), s, to_scores, a.scale);
  products.multiply(heads_of(a.dout), heads_of(a.v), dp, to_scores, 1);
  if (doing == Doing::run) {
    SoftenBackward soften;
    soften.s = reinterpret_cast<const float*>(s.data);
    soften.dp = reinterpret_cast<const float*>(dp.data);
    soften.p = p.data, soften.ds = ds.data;
    soften.o = a.o, soften.dout = a.dout;
    soften.lse = static_cast<const float*>(a.lse.data), soften.lse_head = a.lse.strides[0];
    soften.rule = rule_of(a, at);
    soften_backward(soften, queue.stream().native);
  }
  const Products::Form to_keys = {
      .rows = keys, .columns = width, .depth = queries, .left_transposed = true};
  products.multiply(p, heads_of(a.dout), heads_of(a.dv), to_keys, 1);
  products.multiply(ds, heads_of(a.q), heads_of(a.dk), to_keys, a.scale);
  products.multiply(ds, heads_of(a.k), heads_of(a.dq),
                    {.rows = queries, .columns = width, .depth = keys}, a.scale);
  if (doing != Doing::run || !a.dbias_sums) return;
  AddDiagonals sum;
  sum.ds = ds.data, sum.dtype = ds.dtype;
  sum.sums = static_cast<float*>(a.dbias_sums.data), sum.sums_head = a.dbias_sums.strides[0];
  sum.sample_heads = a.samples.heads, sum.first = a.samples.first;
  sum.heads = a.q.shape[1], sum.queries = queries, sum.columns = keys, sum.stride = at.stride;
  add_diagonals(sum, queue.stream().native);
}

}  // namespace

void attention_of_scores(const Attention& a, GpuQueue& queue, Doing doing) {
  check_bias(a);
  if (!fused(a)) return by_products(a, queue, doing);
  if (doing == Doing::run) fused_attention(a, queue.stream().native);
}

void attention_backward_of_scores(const AttentionBackward& a, GpuQueue& queue, Doing doing) {
  check_bias(a);
  if (!fused(a)) return backward_by_products(a, queue, doing);
  const FusedParts parts = fused_backward_parts(a.q.shape[0], a.q.shape[1], a.k.shape[0]);
  check_workspace(a.workspace, parts.bytes);
  if (doing == Doing::run) fused_attention_backward(a, parts, queue.stream().native);
}

}  // namespace ballast::ops::cuda
