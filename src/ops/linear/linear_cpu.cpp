#include "core/thread_pool.h"
#include "core/to_size.h"
#include "ops/gelu_simd.h"
#include "ops/kernels/token_quantum.h"
#include "ops/linear/linear_expand.h"
#include "ops/linear/linear_kernels.h"
#include "ops/linear/sgemm.h"

namespace ballast::ops::cpu::BALLAST_ISA {
namespace {

std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
std::int64_t pieces(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }

const std::byte* at(const Matrix& m, std::int64_t row, std::int64_t column) {
  return m.data + to_size(row * m.stride + column) * size_of(m.dtype);
}

float load_float(const std::byte* p, std::int64_t i) {
  float x;
  std::memcpy(&x, p + i * 4, sizeof x);
  return x;
}

// A block of f32 rows for sgemm: in place, or a copy in scratch.
struct Block {
  const float* data;
  std::int64_t stride;
};

Block in_place(const Matrix& m, std::int64_t row, std::int64_t column) {
  return {reinterpret_cast<const float*>(at(m, row, column)), m.stride};
}

Block f32_block(const Matrix& m, std::int64_t row, std::int64_t rows, std::int64_t column,
                std::int64_t columns, float* scratch) {
  if (m.dtype == DType::f32) return in_place(m, row, column);
  const std::int64_t stride = columns + kRowPad;
  for (std::int64_t r = 0; r < rows; ++r) {
    expand(m.dtype, at(m, row + r, column), columns, 1.0f, scratch + r * stride);
  }
  return {scratch, stride};
}

// Row n of w from column k on, times its scales; a scale holds for `group` neighbours.
void expand_weight_row(const PanelProduct& a, std::int64_t n, std::int64_t k, std::int64_t count,
                       float* dst) {
  if (!a.scale.data) return expand(a.w.dtype, at(a.w, n, k), count, 1.0f, dst);
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t g = (k + done) / a.scale.group;
    const std::int64_t length = least(count - done, (g + 1) * a.scale.group - (k + done));
    const float factor =
        load_float(a.scale.data, n * a.scale.row_stride + g * a.scale.group_stride);
    expand(a.w.dtype, at(a.w, n, k + done), length, factor, dst + done);
    done += length;
  }
}

Block weight_block(const PanelProduct& a, std::int64_t row, std::int64_t rows, std::int64_t column,
                   std::int64_t columns, float* scratch) {
  if (!a.expand_w) return in_place(a.w, row, column);
  const std::int64_t stride = columns + kRowPad;
  for (std::int64_t r = 0; r < rows; ++r) {
    expand_weight_row(a, row + r, column, columns, scratch + r * stride);
  }
  return {scratch, stride};
}

void add_row(const float* bias, std::int64_t n, float* y) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) v::store(y + i, v::load(y + i) + v::load(bias + i));
  if (i < n) {
    const f32v sum = v::load_partial(y + i, n - i) + v::load_partial(bias + i, n - i);
    v::store_partial(y + i, sum, n - i);
  }
}

void gelu_row(std::int64_t n, float* y) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) v::store(y + i, gelu_of(v::load(y + i)));
  if (i < n) v::store_partial(y + i, gelu_of(v::load_partial(y + i, n - i)), n - i);
}

// y = round(sum + bias), or round(y + (sum + bias)); kBlock elements of bf16.
constexpr int kBlock = 2 * kLanes;
void round_block(const float* sum, const float* bias, bool accumulate, std::byte* y) {
  f32v s[2], old[2];
  std::memcpy(s, sum, sizeof s);
  if (bias) {
    f32v b[2];
    std::memcpy(b, bias, sizeof b);
    for (int i = 0; i < 2; ++i) s[i] += b[i];
  }
  if (accumulate) {
    Format<DType::bf16>::load(y, old);
    for (int i = 0; i < 2; ++i) s[i] = old[i] + s[i];
  }
  const u16x2 rounded = round_to_bf16(s);
  std::memcpy(y, &rounded, sizeof rounded);
}

void round_row(const float* sum, const float* bias, bool accumulate, std::int64_t n, std::byte* y) {
  std::int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    round_block(sum + i, bias ? bias + i : nullptr, accumulate, y + i * 2);
  }
  if (i < n) {
    const std::size_t left = to_size(n - i);
    float sum_end[kBlock] = {}, bias_end[kBlock] = {};
    std::byte y_end[kBlock * 2] = {};
    std::memcpy(sum_end, sum + i, left * 4);
    if (bias) std::memcpy(bias_end, bias + i, left * 4);
    std::memcpy(y_end, y + i * 2, left * 2);
    round_block(sum_end, bias ? bias_end : nullptr, accumulate, y_end);
    std::memcpy(y + i * 2, y_end, left * 2);
  }
}

// What gelu is applied to, as it would be without gelu.
void keep_row(const PanelProduct& a, const float* sum, std::int64_t n, std::int64_t row,
              std::int64_t column) {
  std::byte* const to = a.pre + to_size(row * a.pre_stride + column) * size_of(a.out_dtype);
  if (a.out_dtype == DType::f32) {
    std::memcpy(to, sum, to_size(n) * 4);
  } else {
    round_row(sum, nullptr, false, n, to);
  }
}

// How rows are cut into sgemm calls.
struct RowCut {
  std::int64_t rows, line, per_line, piece;

  explicit RowCut(const PanelProduct& a)
      : rows(a.rows),
        line(a.line),
        per_line(pieces(a.line, kTokenQuantum)),
        piece(a.line > 0 ? pieces(a.line, per_line) : kTokenQuantum) {}

  std::int64_t count() const {
    return line > 0 ? rows / line * per_line : pieces(rows, kTokenQuantum);
  }
  std::int64_t begin(std::int64_t i) const {
    return line > 0 ? i / per_line * line + i % per_line * piece : least(rows, i * piece);
  }
};

// One panel of output columns for a few quanta of rows. Weights are expanded block by block along
// the contraction, and each block serves all rows of the task before the next one replaces it.
void panel_task(const PanelProduct& a, std::int64_t panel, std::int64_t group, float* scratch) {
  const std::int64_t column = panel * a.panel;
  const std::int64_t columns = least(a.panel, a.columns - column);
  const RowCut cut(a);
  const std::int64_t first_piece = group * a.quanta;
  const std::int64_t end_piece = least(cut.count(), first_piece + a.quanta);
  const std::int64_t first_row = cut.begin(first_piece), end_row = cut.begin(end_piece);
  const bool rounded = a.out_dtype != DType::f32;
  float* out = rounded ? scratch + a.scratch.third
                       : reinterpret_cast<float*>(a.out) + first_row * a.out_stride + column;
  const std::int64_t out_stride = rounded ? columns + kRowPad : a.out_stride;

  for (std::int64_t d = 0; d < a.depth; d += kDepth) {
    const std::int64_t depth = least(kDepth, a.depth - d);
    const Block w = a.transposed
                        ? weight_block(a, column, columns, d, depth, scratch + a.scratch.first)
                        : weight_block(a, d, depth, column, columns, scratch + a.scratch.first);
    for (std::int64_t i = first_piece; i < end_piece; ++i) {
      const std::int64_t r = cut.begin(i), rows = cut.begin(i + 1) - r;
      const Block in = f32_block(a.in, r, rows, d, depth, scratch + a.scratch.second);
      sgemm({.transpose_b = a.transposed,
             .m = rows,
             .n = columns,
             .k = depth,
             .alpha = a.alpha,
             .a = in.data,
             .lda = in.stride,
             .b = w.data,
             .ldb = w.stride,
             .beta = d > 0 || (a.accumulate && !rounded) ? 1.0f : 0.0f,
             .c = out + (r - first_row) * out_stride,
             .ldc = out_stride});
    }
  }

  if (!a.bias.data && !rounded && !a.gelu) return;
  float bias[kPanel];
  if (a.bias.data) expand(a.bias.dtype, at(a.bias, 0, column), columns, 1.0f, bias);
  for (std::int64_t r = first_row; r < end_row; ++r) {
    float* sum = out + (r - first_row) * out_stride;
    const bool adds = a.bias.data && (!rounded || a.gelu);
    if (adds) add_row(bias, columns, sum);
    if (a.pre) keep_row(a, sum, columns, r, column);
    if (a.gelu) gelu_row(columns, sum);
    if (!rounded) continue;
    round_row(sum, a.bias.data && !adds ? bias : nullptr, a.accumulate, columns,
              a.out + (r * a.out_stride + column) * 2);
  }
}

// to += alpha * (row 0 + row 1 + ...), the rows in order.
void add_column_sums(const Block& m, std::int64_t rows, std::int64_t columns, float alpha,
                     float* to) {
  std::int64_t i = 0;
  for (; i + kLanes <= columns; i += kLanes) {
    f32v sum = {};
    for (std::int64_t r = 0; r < rows; ++r) sum += v::load(m.data + r * m.stride + i);
    v::store(to + i, v::load(to + i) + sum * alpha);
  }
  if (const std::int64_t left = columns - i; left > 0) {
    f32v sum = {};
    for (std::int64_t r = 0; r < rows; ++r) {
      sum += v::load_partial(m.data + r * m.stride + i, left);
    }
    v::store_partial(to + i, v::load_partial(to + i, left) + sum * alpha, left);
  }
}

}  // namespace

void panel_product(const PanelProduct& a, ThreadPool& pool) {
  const std::int64_t groups = pieces(RowCut(a).count(), a.quanta);
  pool.parallel(pieces(a.columns, a.panel) * groups, [&](std::int64_t task, int worker) {
    panel_task(a, task / groups, task % groups, a.scratch.data + worker * a.scratch.stride);
  });
}

// One tile of dw; rows are contracted quantum by quantum, each added to the tile before the next.
void outer_product(const OuterProduct& a, ThreadPool& pool) {
  const std::int64_t panels_k = pieces(a.k, a.panel_k);
  pool.parallel(pieces(a.n, a.panel_n) * panels_k, [&](std::int64_t task, int worker) {
    float* scratch = a.scratch.data + worker * a.scratch.stride;
    const std::int64_t n = task / panels_k * a.panel_n, k = task % panels_k * a.panel_k;
    const std::int64_t n_count = least(a.panel_n, a.n - n), k_count = least(a.panel_k, a.k - k);
    for (std::int64_t r = 0; r < a.rows; r += kTokenQuantum) {
      const std::int64_t rows = least(kTokenQuantum, a.rows - r);
      const Block dy = f32_block(a.dy, r, rows, n, n_count, scratch + a.scratch.first);
      const Block x = f32_block(a.x, r, rows, k, k_count, scratch + a.scratch.second);
      sgemm({.transpose_a = true,
             .m = n_count,
             .n = k_count,
             .k = rows,
             .alpha = a.alpha,
             .a = dy.data,
             .lda = dy.stride,
             .b = x.data,
             .ldb = x.stride,
             .beta = 1,
             .c = a.dw + n * a.dw_stride + k,
             .ldc = a.dw_stride});
      if (a.dbias && k == 0) add_column_sums(dy, rows, n_count, a.alpha, a.dbias + n);
    }
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
