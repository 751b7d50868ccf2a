#include "ops/attention/attention_cpu.h"

#include "core/simd.h"
#include "core/thread_pool.h"
#include "ops/attention/attention_rows.h"
#include "ops/linear/tile_product.h"

namespace ballast::ops::cpu::BALLAST_ISA {
namespace {

// Scores are both columns of a product and rows of another one, transposed.
static_assert(kKeyTile % kKeyStep == 0 && kForwardQueryTile % kProductRows == 0);

// One row of scores s becomes p = e^(s - m), where m is the largest score so far. max and sum carry
// m and the sum of p from key tile to key tile. Returns e^(old m - m), what the earlier tiles' p
// lack.
float soften(float* s, std::int64_t keys, float* max, float* sum) {
  using namespace simd::BALLAST_ISA;
  // Two vectors at a time, so that neither loop waits for its own last result.
  static_assert(kKeyStep % (2 * kLanes) == 0);
  f32v most0 = splat(*max), most1 = most0;
  for (std::int64_t j = 0; j < keys; j += 2 * kLanes) {
    most0 = simd::BALLAST_ISA::max(most0, load(s + j));
    most1 = simd::BALLAST_ISA::max(most1, load(s + j + kLanes));
  }
  const float m = reduce_max(simd::BALLAST_ISA::max(most0, most1));
  f32v total0 = {}, total1 = {};
  for (std::int64_t j = 0; j < keys; j += 2 * kLanes) {
    const f32v p0 = exp(load(s + j) - m), p1 = exp(load(s + j + kLanes) - m);
    store(s + j, p0);
    store(s + j + kLanes, p1);
    total0 += p0;
    total1 += p1;
  }
  const float factor = exp(splat(*max - m))[0];
  *sum = *sum * factor + reduce_add(total0 + total1);
  *max = m;
  return factor;
}

// What is left of a row of weights.
void drop_row(const DropRule& rule, std::int64_t head, std::int64_t query, std::int64_t key,
              std::int64_t keys, float* p) {
  each_word(rule, head, query, key, keys,
            [&](std::int64_t first, std::int64_t count, const std::uint32_t* words) {
              for (std::int64_t j = 0; j < count; ++j) {
                p[first + j] = words[j] < rule.threshold ? 0.0f : p[first + j] * rule.scale;
              }
            });
}

void scale_row(float* x, std::int64_t width, float factor) {
  if (factor == 1.0f) return;  // the largest score seldom changes after the first tiles
  for (std::int64_t j = 0; j < width; ++j) x[j] *= factor;
}

// Queries [first, first + rows) of one head, key tile by key tile:
//   S = (scale Q) K^T + bias;  m, p, sum as above;  O = O e^(old m - m) + p V;  at the end O / sum.
template <class T>
void query_tile(const ForwardCall& a, std::int64_t head, std::int64_t first, float* scratch) {
  const ForwardScratch& at = a.scratch;
  float *q = scratch + at.q, *kt = scratch + at.kt, *v = scratch + at.v, *s = scratch + at.s,
        *o = scratch + at.o, *max = scratch + at.max, *sum = scratch + at.sum;
  const std::int64_t rows = smaller(kForwardQueryTile, a.queries - first);
  const std::int64_t padded_rows = round_up(rows, kProductRows);
  const std::int64_t depth = round_up(a.width, kProductDepth);
  const std::int64_t columns = round_up(a.width, kProductColumns);

  load_rows(row_of<T>(a.q, first, head), a.q.row, rows, a.width, a.scale, q, at.row, padded_rows,
            columns);
  for (std::int64_t i = 0; i < rows; ++i) {
    max[i] = -__builtin_inff();
    sum[i] = 0;
  }
  // Tiles behind the last query would add nothing but zeros.
  const std::int64_t end = a.causal ? smaller(a.keys, first + rows) : a.keys;
  for (std::int64_t key = 0; key < end; key += kKeyTile) {
    const std::int64_t keys = smaller(kKeyTile, a.keys - key);
    const std::int64_t padded_keys = round_up(keys, kKeyStep);
    load_transposed(row_of<T>(a.k, key, head), a.k.row, keys, a.width, kt, kScoreStride,
                    padded_keys, depth);
    load_rows(row_of<T>(a.v, key, head), a.v.row, keys, a.width, 1.0f, v, at.row, padded_keys,
              columns);
    product<ProductA::plain, ProductC::set>(q, at.row, kt, kScoreStride, s, kScoreStride,
                                            padded_rows, padded_keys, depth);
    bias_and_mask(a.bias, a.causal, a.queries, head, first, rows, key, keys, s);
    hide_columns(s, rows, keys, padded_keys);
    for (std::int64_t i = 0; i < rows; ++i) {
      const float factor = soften(s + i * kScoreStride, padded_keys, max + i, sum + i);
      if (key > 0) scale_row(o + i * at.row, columns, factor);
      if (a.drop.on) drop_row(a.drop, head, first + i, key, keys, s + i * kScoreStride);
    }
    if (key == 0) {
      product<ProductA::plain, ProductC::set>(s, kScoreStride, v, at.row, o, at.row, padded_rows,
                                              columns, padded_keys);
    } else {
      product<ProductA::plain, ProductC::add>(s, kScoreStride, v, at.row, o, at.row, padded_rows,
                                              columns, padded_keys);
    }
  }
  float* lse = a.lse + head * a.lse_head + first;
  for (std::int64_t i = 0; i < rows; ++i) {
    T* out = row_of<T>(a.o, first + i, head);
    if (a.keys == 0) {
      for (std::int64_t j = 0; j < a.width; ++j) out[j] = 0;
      lse[i] = -__builtin_inff();
    } else {
      store_row(o + i * at.row, a.width, 1.0f / sum[i], out);
      lse[i] = max[i] + __builtin_logf(sum[i]);
    }
  }
}

template <class T>
void forward(const ForwardCall& a, ThreadPool& pool) {
  const std::int64_t tiles = (a.queries + kForwardQueryTile - 1) / kForwardQueryTile;
  const std::int64_t tasks = tiles * a.heads;
  const bool one_each = tasks <= pool.threads();  // then the workspace has a part per task
  pool.parallel(tasks, [&](std::int64_t task, int worker) {
    float* scratch = a.workspace + (one_each ? task : worker) * a.scratch.floats;
    query_tile<T>(a, task / tiles, task % tiles * kForwardQueryTile, scratch);
  });
}

}  // namespace

void attention(const ForwardCall& a, ThreadPool& pool) {
  if (a.bf16) {
    forward<std::uint16_t>(a, pool);
  } else {
    forward<float>(a, pool);
  }
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
