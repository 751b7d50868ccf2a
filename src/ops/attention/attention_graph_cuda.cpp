#include <algorithm>

#include "core/to_size.h"
#include "ops/attention/attention_graph.h"
#include "ops/kernels/cudnn_graph.h"

namespace ballast::ops::cuda {
namespace {

using Layout = CudnnGraph::Layout;
using Tensor = CudnnGraph::Tensor;

constexpr cudnnDataType_t kFloat = CUDNN_DATA_FLOAT;
constexpr cudnnDataType_t kBf16 = CUDNN_DATA_BFLOAT16;

// Shapes and the operations that both graphs share. cuDNN wants [batch, heads, rows, columns].
class Builder {
 public:
  explicit Builder(const AttentionGraph& a) : a_(a) {}

  Layout heads(AttentionTensor t) const {  // [1, H, L, D]
    const bool of_keys = t == kK || t == kV || t == kDk || t == kDv;
    const std::int64_t length = of_keys ? a_.keys : a_.queries;
    const AttentionGraph::Strides s = a_.strides[to_size(t)];
    return {kBf16,
            {1, a_.heads, length, a_.width},
            {std::max(length * s.row, a_.heads * s.head), s.head, s.row, 1}};
  }
  static Layout transposed(Layout x) {  // the same memory, rows and columns exchanged
    std::swap(x.dims[2], x.dims[3]);
    std::swap(x.strides[2], x.strides[3]);
    return x;
  }
  Layout scores(cudnnDataType_t type) const {  // [1, H, Lq, Lk]
    const std::int64_t one = a_.queries * a_.keys;
    return {type, {1, a_.heads, a_.queries, a_.keys}, {a_.heads * one, one, a_.keys, 1}};
  }
  Layout dense(std::int64_t columns) const {  // [1, H, Lq, columns] f32
    const std::int64_t one = a_.queries * columns;
    return {kFloat, {1, a_.heads, a_.queries, columns}, {a_.heads * one, one, columns, 1}};
  }
  Layout lse() const {
    Layout x = dense(1);
    x.strides[0] = a_.heads * a_.lse_head;
    x.strides[1] = a_.lse_head;
    return x;
  }

  Tensor operand(AttentionTensor t) { return g.in_memory(t, heads(t)); }
  Tensor operand_transposed(AttentionTensor t) { return g.in_memory(t, transposed(heads(t))); }
  // A group of heads may begin at any float.
  Tensor lse_in_memory() { return g.in_memory(kLse, lse(), sizeof(float)); }

  Tensor product(Tensor a, Tensor b, const Layout& c) {
    const Tensor y = g.between(c);
    g.matmul(a, b, y);
    return y;
  }
  Tensor map(cudnnPointwiseMode_t mode, Tensor x, const Layout& layout) {
    const Tensor y = g.between(layout);
    g.pointwise(mode, x, y);
    return y;
  }
  Tensor map(cudnnPointwiseMode_t mode, Tensor x, Tensor b, const Layout& layout) {
    const Tensor y = g.between(layout);
    g.pointwise(mode, x, b, y);
    return y;
  }
  Tensor sum(cudnnReduceTensorOp_t op, Tensor x) {  // over the last dimension
    const Tensor y = g.between(dense(1));
    g.reduce(op, x, y);
    return y;
  }
  Tensor reshaped(Tensor x, const Layout& layout) {
    const Tensor y = g.between(layout);
    g.reshape(x, y);
    return y;
  }

  CudnnGraph g;

 private:
  const AttentionGraph& a_;
};

// S = scale q k^T, lse = log(sum(e^S)), o = e^S / sum(e^S) v; the weights become bf16 for the
// second product.
CudnnGraph forward(const AttentionGraph& a) {
  Builder b(a);
  const Layout scores = b.scores(kFloat);
  const Tensor q = b.operand(kQ), kt = b.operand_transposed(kK), v = b.operand(kV);
  const Tensor scale = b.g.scalar(kScale);
  const Tensor s = b.map(CUDNN_POINTWISE_MUL, b.product(q, kt, scores), scale, scores);
  const Tensor most = b.sum(CUDNN_REDUCE_TENSOR_MAX, s);
  const Tensor less = b.map(CUDNN_POINTWISE_SUB, s, most, scores);
  const Tensor e = b.map(CUDNN_POINTWISE_EXP, less, scores);
  const Tensor sum = b.sum(CUDNN_REDUCE_TENSOR_ADD, e);
  const Tensor log = b.map(CUDNN_POINTWISE_LOG, sum, b.dense(1));
  b.g.pointwise(CUDNN_POINTWISE_ADD, most, log, b.lse_in_memory());
  const Tensor p = b.map(CUDNN_POINTWISE_DIV, e, sum, b.scores(kBf16));
  b.g.matmul(p, v, b.operand(kO));
  return std::move(b.g);
}

// P = e^(S - lse), dS = scale P (dout v^T - delta): dv = P^T dout, dk = dS^T q, dq = dS k. cuDNN
// recognises the whole by its form, which therefore has a product with one and reshapes that
// nobody else would need.
CudnnGraph backward(const AttentionGraph& a) {
  Builder b(a);
  const Layout scores = b.scores(kFloat);
  const Layout transposed = Builder::transposed(b.scores(kBf16));  // [1, H, Lk, Lq]
  const Tensor q = b.operand(kQ), kt = b.operand_transposed(kK), vt = b.operand_transposed(kV);
  const Tensor o = b.operand(kO), dout = b.operand(kDout), lse = b.lse_in_memory();
  const Tensor scale = b.g.scalar(kScale), one = b.g.scalar(kOne);

  const Tensor both = b.map(CUDNN_POINTWISE_MUL, dout, o, b.dense(a.width));
  const Tensor delta = b.g.in_memory(kDelta, b.dense(1));
  b.g.pointwise(CUDNN_POINTWISE_MUL, b.sum(CUDNN_REDUCE_TENSOR_ADD, both), one, delta);

  const Tensor s = b.map(CUDNN_POINTWISE_MUL, b.product(q, kt, scores), scale, scores);
  const Tensor less = b.map(CUDNN_POINTWISE_SUB, s, lse, scores);
  const Tensor p = b.map(CUDNN_POINTWISE_EXP, less, scores);
  b.g.matmul(b.reshaped(p, transposed), dout, b.operand(kDv));

  const Tensor dp = b.product(dout, vt, scores);
  const Tensor centred = b.map(CUDNN_POINTWISE_SUB, dp, delta, scores);
  const Tensor ds = b.map(CUDNN_POINTWISE_MUL, centred, p, scores);
  const Layout ds_layout = a.deterministic ? b.scores(kBf16) : scores;
  const Tensor scaled = b.map(CUDNN_POINTWISE_MUL, ds, scale, ds_layout);
  b.g.matmul(b.reshaped(scaled, transposed), q, b.operand(kDk));

  const Tensor k = b.reshaped(kt, b.heads(kK));
  const Tensor dq = b.operand(kDq);
  if (a.deterministic) {
    b.g.matmul(scaled, k, dq);
  } else {
    const Layout sums = b.dense(a.width);
    const Tensor dq_sum = a.dq_sum_is_ours ? b.g.in_memory(kDqSum, sums) : b.g.between(sums);
    b.g.matmul(scaled, k, dq_sum);
    b.g.pointwise(CUDNN_POINTWISE_IDENTITY, dq_sum, dq);
  }
  return std::move(b.g);
}

}  // namespace

CudnnGraph attention_graph(const AttentionGraph& a) {
  return a.backward ? backward(a) : forward(a);
}

std::vector<std::int64_t> attention_tensors(const AttentionGraph& a) {
  if (!a.backward) return {kQ, kK, kV, kO, kLse, kScale};
  std::vector<std::int64_t> ids = {kQ,  kK,  kV,  kO,     kLse,   kDout,
                                   kDq, kDk, kDv, kDelta, kScale, kOne};
  if (!a.deterministic && a.dq_sum_is_ours) ids.push_back(kDqSum);
  return ids;
}

std::vector<std::int64_t> offered_workspaces(const AttentionGraph& a,
                                             std::string_view gpu_properties) {
  CudnnGraph graph = attention_graph(a);
  std::vector<std::int64_t> bytes;
  for (const CudnnObject& c : graph.configurations(CudnnTarget(gpu_properties))) {
    bytes.push_back(workspace_of(c));
  }
  return bytes;
}

}  // namespace ballast::ops::cuda
