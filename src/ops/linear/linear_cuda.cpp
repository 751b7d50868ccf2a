#include "ops/linear/linear_cuda.h"

#include <algorithm>

#include "memory/gpu.h"
#include "ops/kernels/token_quantum.h"
#include "ops/linear/linear_scratch.h"
#include "ops/linear/matrix_product_cuda.h"

namespace ballast::ops::cuda {
namespace {

std::int64_t row_stride(const View& v) {
  return v.shape[0] <= 1 ? packed_stride(v.shape[1], v.dtype) : v.strides[0];
}

bool usable_in_place(const View& v, DType type) {
  return v.dtype == type &&
         in_sixteens(reinterpret_cast<std::uintptr_t>(v.data), v.shape[0], v.strides[0], v.dtype);
}

View packed(std::byte* at, const View& like, DType type) {
  View v;
  v.data = at;
  v.dtype = type;
  v.rank = 2;
  v.shape[0] = like.shape[0];
  v.shape[1] = like.shape[1];
  v.strides[0] = packed_stride(like.shape[1], type);
  v.strides[1] = 1;
  return v;
}

// The operand where it is, or a copy that a product can read.
View operand(const View& v, DType type, const WeightScale& scale, std::byte* scratch, void* stream,
             Doing doing) {
  if (scale.data == nullptr && usable_in_place(v, type)) return v;
  const View copy = packed(scratch, v, type);
  if (doing == Doing::run) expand({v, copy, scale}, stream);
  return copy;
}

const void* bias_of(const LinearCall& a, void* stream, Doing doing) {
  if (!a.bias) return nullptr;
  View row = a.bias;  // [N] as a matrix of one row
  row.rank = 2;
  row.shape[0] = 1;
  row.shape[1] = a.out.shape[1];
  row.strides[0] = packed_stride(row.shape[1], row.dtype);
  row.strides[1] = 1;
  return operand(row, a.out.dtype, {}, a.workspace + a.scratch.bias, stream, doing).data;
}

View rows_of(const View& v, std::int64_t first, std::int64_t count) {
  View part = v;
  part.data = static_cast<std::byte*>(v.data) +
              first * v.strides[0] * static_cast<std::int64_t>(size_of(v.dtype));
  part.shape[0] = count;
  return part;
}

View columns_of(const View& v, std::int64_t first, std::int64_t count) {
  View part = v;
  part.data = static_cast<std::byte*>(v.data) + first * static_cast<std::int64_t>(size_of(v.dtype));
  part.shape[v.rank - 1] = count;
  return part;
}

// The rows that an algorithm is chosen for: where any will do, each number of rows may have the one
// that suits it; elsewhere one choice for all.
std::int64_t chosen_rows(const ProductKind& k) {
  constexpr std::int64_t kUsualRows = 4096;
  return any_algorithm(k.in, k.columns, k.depth) ? k.rows : kUsualRows;
}

// dw's product over one quantum, or over several side by side into partial sums.
ProductKind quantum_kind(const View& dy, const View& x, std::int64_t depth, std::int64_t stride) {
  ProductKind k;
  k.rows = k.chosen_rows = dy.shape[1];
  k.columns = x.shape[1];
  k.depth = depth;
  k.left_stride = row_stride(dy);
  k.right_stride = row_stride(x);
  k.out_stride = stride;
  k.left_transposed = true;
  k.in = x.dtype;
  k.out = DType::f32;
  return k;
}

void dw_in_place(const LinearDwCall& a, const View& dy, const View& x, MatrixProducts& products,
                 Doing doing) {
  for (std::int64_t first = 0; first < x.shape[0]; first += a.quantum) {
    const std::int64_t count = std::min(a.quantum, x.shape[0] - first);
    const ProductKind kind = quantum_kind(dy, x, count, row_stride(a.dw));
    if (doing == Doing::prepare) {
      products.prepare(kind);
      continue;
    }
    products.run(kind, {.left = rows_of(dy, first, count).data,
                        .right = rows_of(x, first, count).data,
                        .out = a.dw.data,
                        .alpha = a.alpha,
                        .accumulate = true,
                        .workspace = a.workspace});
  }
}

// The contraction over all rows is one product.
void dw_at_once(const LinearDwCall& a, const View& dy, const View& x, MatrixProducts& products,
                Doing doing) {
  ProductKind kind = quantum_kind(dy, x, x.shape[0], row_stride(a.dw));
  kind.out = a.dw.dtype;
  const bool there = usable_in_place(a.dw, a.dw.dtype);
  if (doing == Doing::prepare) {
    if (there) products.prepare(kind);
    return;
  }
  const ProductOperands operands = {.left = dy.data,
                                    .right = x.data,
                                    .out = a.dw.data,
                                    .alpha = a.alpha,
                                    .accumulate = !a.overwrite,
                                    .workspace = a.workspace};
  if (there) {
    products.run(kind, operands);
  } else {
    products.run_plainly(kind, operands);
  }
}

void dw_by_partials(const LinearDwCall& a, const View& dy, const View& x, MatrixProducts& products,
                    void* stream, Doing doing) {
  const std::int64_t rows = x.shape[0], stride = packed_stride(x.shape[1], DType::f32);
  const std::int64_t step = dy.shape[1] * stride;
  auto* const partials = reinterpret_cast<float*>(a.workspace + a.scratch.partials);
  const auto product = [&](const ProductKind& kind, std::int64_t first, float* out) {
    if (doing == Doing::prepare) return products.prepare(kind);
    products.run(kind, {.left = rows_of(dy, first, 0).data,
                        .right = rows_of(x, first, 0).data,
                        .out = out,
                        .alpha = a.alpha,
                        .workspace = a.workspace});
  };
  for (std::int64_t first = 0; first < rows; first += a.group * kTokenQuantum) {
    const std::int64_t count = std::min(a.group * kTokenQuantum, rows - first);
    const std::int64_t whole = count / kTokenQuantum, rest = count % kTokenQuantum;
    if (whole > 0) {
      ProductKind kind = quantum_kind(dy, x, kTokenQuantum, stride);
      kind.batches = whole;
      kind.chosen_batches = a.group;
      kind.left_step = kTokenQuantum * kind.left_stride;
      kind.right_step = kTokenQuantum * kind.right_stride;
      kind.out_step = step;
      product(kind, first, partials);
    }
    if (rest > 0) {
      product(quantum_kind(dy, x, rest, stride), first + whole * kTokenQuantum,
              partials + whole * step);
    }
    if (doing == Doing::run) {
      ordered_sum({a.dw, partials, whole + (rest > 0 ? 1 : 0), step, stride}, stream);
    }
  }
}

// What a product reads, where it can read it.
struct Operands {
  View in, w;
  const void* bias = nullptr;
};

ProductKind kind_of(const LinearCall& a, const Operands& o, const View& out) {
  ProductKind kind;
  kind.rows = a.in.shape[0];
  kind.columns = out.shape[1];
  kind.depth = a.in.shape[1];
  kind.left_stride = row_stride(o.in);
  kind.right_stride = row_stride(o.w);
  kind.out_stride = row_stride(out);
  kind.right_transposed = a.transposed;
  kind.bias = o.bias != nullptr;
  kind.gelu = a.gelu;
  kind.in = a.type;
  kind.out = out.dtype;
  kind.chosen_rows = chosen_rows(kind);
  return kind;
}

// out and pre by products of both, if cuBLASLt has them.
bool both_at_once(const LinearCall& a, const Operands& o, MatrixProducts& products, Doing doing) {
  if (!a.one_product_for_both) return false;
  const std::int64_t rows = a.in.shape[0], most = rows_for_both(rows);
  const auto kind_at = [&](std::int64_t first) {
    ProductKind kind = kind_of(a, o, a.out);
    kind.pre_stride = row_stride(a.pre);
    kind.rows = kind.chosen_rows = std::min(most, rows - first);
    return kind;
  };
  bool taken = true;
  for (std::int64_t first = 0; first < rows; first += most) {
    taken = products.takes(kind_at(first)) && taken;
  }
  for (std::int64_t first = 0; taken && doing == Doing::run && first < rows; first += most) {
    products.run(kind_at(first), {.left = rows_of(o.in, first, 0).data,
                                  .right = o.w.data,
                                  .bias = o.bias,
                                  .out = rows_of(a.out, first, 0).data,
                                  .pre = rows_of(a.pre, first, 0).data,
                                  .alpha = a.alpha,
                                  .workspace = a.workspace});
  }
  return taken;
}

void one_result(const LinearCall& a, const Operands& o, GpuQueue& queue, Doing doing) {
  void* const stream = queue.stream().native;
  const bool there = usable_in_place(a.out, a.out.dtype);
  const View out = there ? a.out : packed(a.workspace + a.scratch.out, a.out, a.out.dtype);
  const ProductKind kind = kind_of(a, o, out);
  const bool narrow = kind.in == DType::bf16 && kind.out == DType::bf16 && !kind.bias &&
                      !kind.gelu && narrow_product_takes(kind.columns, kind.depth);
  auto& products = queue.local<MatrixProducts>();
  if (doing == Doing::prepare) {
    if (!narrow) products.prepare(kind);
    return;
  }
  if (!there && a.accumulate) expand({a.out, out, {}}, stream);
  if (narrow) {
    narrow_product({.left = o.in.data,
                    .right = o.w.data,
                    .out = out.data,
                    .left_stride = kind.left_stride,
                    .right_stride = kind.right_stride,
                    .out_stride = kind.out_stride,
                    .rows = kind.rows,
                    .columns = kind.columns,
                    .depth = kind.depth,
                    .right_transposed = kind.right_transposed,
                    .accumulate = a.accumulate,
                    .alpha = a.alpha},
                   stream);
  } else {
    products.run(kind, {.left = o.in.data,
                        .right = o.w.data,
                        .bias = o.bias,
                        .out = out.data,
                        .alpha = a.alpha,
                        .accumulate = a.accumulate,
                        .workspace = a.workspace});
  }
  if (!there) expand({out, a.out, {}}, stream);
}

void linear_at_once(const LinearCall& a, GpuQueue& queue, Doing doing) {
  if (a.in.shape[0] == 0) return;
  void* const stream = queue.stream().native;
  const Operands o = {
      .in = operand(a.in, a.type, {}, a.workspace + a.scratch.left, stream, doing),
      .w = operand(a.w, a.type, a.scale, a.workspace + a.scratch.right, stream, doing),
      .bias = bias_of(a, stream, doing)};
  if (a.pre) {
    if (both_at_once(a, o, queue.local<MatrixProducts>(), doing)) return;
    LinearCall sum = a;
    sum.out = a.pre;
    sum.gelu = false;
    one_result(sum, o, queue, doing);
  }
  one_result(a, o, queue, doing);
}

}  // namespace

void linear(const LinearCall& a, GpuQueue& queue, Doing doing) {
  const std::int64_t columns = a.out.shape[1];
  if (a.columns_at_once >= columns) return linear_at_once(a, queue, doing);
  for (std::int64_t first = 0; first < columns; first += a.columns_at_once) {
    const std::int64_t count = std::min(a.columns_at_once, columns - first);
    LinearCall part = a;
    part.w = a.transposed ? rows_of(a.w, first, count) : columns_of(a.w, first, count);
    part.out = columns_of(a.out, first, count);
    if (a.pre) part.pre = columns_of(a.pre, first, count);
    if (a.bias) part.bias = columns_of(a.bias, first, count);
    linear_at_once(part, queue, doing);
  }
}

void linear_dw(const LinearDwCall& a, GpuQueue& queue, Doing doing) {
  const std::int64_t rows = a.x.shape[0];
  if (rows == 0) return;
  void* const stream = queue.stream().native;
  const View dy = operand(a.dy, a.type, {}, a.workspace + a.scratch.left, stream, doing);
  const View x = operand(a.x, a.type, {}, a.workspace + a.scratch.right, stream, doing);
  auto& products = queue.local<MatrixProducts>();
  switch (a.method) {
    case DwMethod::at_once:
      dw_at_once(a, dy, x, products, doing);
      break;
    case DwMethod::quanta:
      dw_in_place(a, dy, x, products, doing);
      break;
    case DwMethod::partials:
      dw_by_partials(a, dy, x, products, stream, doing);
      break;
  }
  if (!a.dbias || doing == Doing::prepare) return;
  auto* const sums = reinterpret_cast<float*>(a.workspace + a.scratch.bias);
  quantum_sums({a.dy, sums, kTokenQuantum, a.alpha}, stream);
  View dbias = a.dbias;  // [N] as a matrix of one row
  dbias.rank = 2;
  dbias.shape[0] = 1;
  dbias.shape[1] = dbias.strides[0] = a.dy.shape[1];
  dbias.strides[1] = 1;
  const std::int64_t quanta = (rows + kTokenQuantum - 1) / kTokenQuantum;
  ordered_sum({dbias, sums, quanta, dbias.shape[1], 0}, stream);
}

}  // namespace ballast::ops::cuda
