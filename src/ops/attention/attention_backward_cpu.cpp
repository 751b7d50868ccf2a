#include <cstring>

#include "core/simd.h"
#include "core/thread_pool.h"
#include "core/to_size.h"
#include "ops/attention/attention_cpu.h"
#include "ops/attention/attention_rows.h"
#include "ops/linear/tile_product.h"

namespace ballast::ops::cpu::BALLAST_ISA {
namespace {

static_assert(kKeyTile % kKeyStep == 0 && kBackwardQueryTile % kProductRows == 0);

float dot(const float* x, const float* y, std::int64_t padded_width) {
  using namespace simd::BALLAST_ISA;
  f32v sum = {};
  for (std::int64_t j = 0; j < padded_width; j += kLanes) sum += load(x + j) * load(y + j);
  return reduce_add(sum);
}

// One row: p = e^(s - lse) in place of s, ds = p (dp - delta) in place of dp.
void soften_backward(float* s, float* dp, std::int64_t keys, float lse, float delta) {
  using namespace simd::BALLAST_ISA;
  for (std::int64_t j = 0; j < keys; j += kLanes) {
    const f32v p = exp(load(s + j) - lse);
    store(s + j, p);
    store(dp + j, p * (load(dp + j) - delta));
  }
}

// The same where weights were dropped: dv sees what was left of p, and so does dp of the others.
void soften_backward(const DropRule& rule, std::int64_t head, std::int64_t query, std::int64_t key,
                     float* s, float* dp, std::int64_t keys, float lse, float delta) {
  using namespace simd::BALLAST_ISA;
  for (std::int64_t j = 0; j < keys; j += kLanes) store(s + j, exp(load(s + j) - lse));
  each_word(rule, head, query, key, keys,
            [&](std::int64_t first, std::int64_t count, const std::uint32_t* words) {
              for (std::int64_t j = 0; j < count; ++j) {
                const float p = s[first + j];
                const bool dropped = words[j] < rule.threshold;
                s[first + j] = dropped ? 0.0f : p * rule.scale;
                dp[first + j] = p * ((dropped ? 0.0f : dp[first + j] * rule.scale) - delta);
              }
            });
}

// sum (+)= factor * x, one row; x is padded, sum is not.
void add_row(const float* x, std::int64_t width, float factor, bool first, float* sum) {
  using namespace simd::BALLAST_ISA;
  for (std::int64_t j = 0; j < width; j += kLanes) {
    const std::int64_t n = smaller(kLanes, width - j);
    const f32v old = first ? f32v{} : n == kLanes ? load(sum + j) : load_partial(sum + j, n);
    const f32v now = load(x + j) * factor + old;
    if (n == kLanes) {
      store(sum + j, now);
    } else {
      store_partial(sum + j, now, n);
    }
  }
}

// One head. With S = (scale Q) K^T + bias, P = e^(S - lse), delta = rowsum(dO * O), dS = P * (dO
// V^T - delta):
//   dV = P^T dO,  dK = dS^T (scale Q),  dQ = scale dS K,  dbias: sums of dS along diagonals.
// Key tiles are the outer loop; dK and dV of a key tile grow query by query in scratch, dQ key tile
// by key tile in f32: in its own memory, or in scratch when it is to be rounded at the end.
template <class T>
struct Head {
  const BackwardCall& a;
  const std::int64_t head;
  float* const scratch;
  const BackwardScratch& at = a.scratch;
  const std::int64_t depth = round_up(a.width, kProductDepth);
  const std::int64_t columns = round_up(a.width, kProductColumns);
  float *const q = scratch + at.q, *const dout = scratch + at.dout, *const dq = scratch + at.dq;
  float *const k = scratch + at.k, *const kt = scratch + at.kt, *const vt = scratch + at.vt;
  float *const dk = scratch + at.dk, *const dv = scratch + at.dv;
  float *const p = scratch + at.p, *const ds = scratch + at.ds, *const delta = scratch + at.delta;

  void run() const {
    for (std::int64_t key = 0; key < a.keys; key += kKeyTile) key_tile(key);
    for (std::int64_t i = a.keys; i < a.all_keys; ++i) {
      zero_row(row_of<T>(a.dk, i, head));
      zero_row(row_of<T>(a.dv, i, head));
    }
    if (a.keys == 0) {
      for (std::int64_t i = 0; i < a.queries; ++i) zero_row(row_of<T>(a.dq, i, head));
    }
  }

  void zero_row(T* row) const { std::memset(row, 0, to_size(a.width) * sizeof(T)); }

  void key_tile(std::int64_t key) const {
    const std::int64_t keys = smaller(kKeyTile, a.keys - key);
    const std::int64_t padded_keys = round_up(keys, kKeyStep);
    const T* k_in = row_of<T>(a.k, key, head);
    load_rows(k_in, a.k.row, keys, a.width, 1.0f, k, at.row, padded_keys, columns);
    load_transposed(k_in, a.k.row, keys, a.width, kt, kScoreStride, padded_keys, depth);
    load_transposed(row_of<T>(a.v, key, head), a.v.row, keys, a.width, vt, kScoreStride,
                    padded_keys, depth);
    std::memset(dk, 0, to_size(padded_keys * at.row) * sizeof(float));
    std::memset(dv, 0, to_size(padded_keys * at.row) * sizeof(float));
    for (std::int64_t first = 0; first < a.queries; first += kBackwardQueryTile) {
      query_tile(first, key, keys, padded_keys);
    }
    for (std::int64_t i = 0; i < keys; ++i) {
      store_row(dk + i * at.row, a.width, 1.0f, row_of<T>(a.dk, key + i, head));
      store_row(dv + i * at.row, a.width, 1.0f, row_of<T>(a.dv, key + i, head));
    }
  }

  void query_tile(std::int64_t first, std::int64_t key, std::int64_t keys,
                  std::int64_t padded_keys) const {
    const std::int64_t rows = smaller(kBackwardQueryTile, a.queries - first);
    const std::int64_t padded_rows = round_up(rows, kProductRows);
    load_rows(row_of<T>(a.q, first, head), a.q.row, rows, a.width, a.scale, q, at.row, padded_rows,
              columns);
    load_rows(row_of<T>(a.dout, first, head), a.dout.row, rows, a.width, 1.0f, dout, at.row,
              padded_rows, columns);
    if (key == 0) {
      float* o = dq;  // not needed until the end of this tile
      load_rows(row_of<T>(a.o, first, head), a.o.row, rows, a.width, 1.0f, o, at.row, rows,
                columns);
      for (std::int64_t i = 0; i < rows; ++i) {
        delta[first + i] = dot(o + i * at.row, dout + i * at.row, columns);
      }
    }
    product<ProductA::plain, ProductC::set>(q, at.row, kt, kScoreStride, p, kScoreStride,
                                            padded_rows, padded_keys, depth);
    bias_and_mask(a.bias, a.causal, a.queries, head, first, rows, key, keys, p);
    hide_columns(p, rows, keys, padded_keys);
    product<ProductA::plain, ProductC::set>(dout, at.row, vt, kScoreStride, ds, kScoreStride,
                                            padded_rows, padded_keys, depth);
    const float* lse = a.lse + head * a.lse_head + first;
    for (std::int64_t i = 0; i < rows; ++i) {
      float *const s = p + i * kScoreStride, *const dp = ds + i * kScoreStride;
      if (a.drop.on) {
        soften_backward(a.drop, head, first + i, key, s, dp, padded_keys, lse[i], delta[first + i]);
      } else {
        soften_backward(s, dp, padded_keys, lse[i], delta[first + i]);
      }
    }
    if (a.dbias.data) add_dbias(first, rows, key, keys);
    product<ProductA::transposed, ProductC::add>(p, kScoreStride, dout, at.row, dv, at.row,
                                                 padded_keys, columns, rows);
    product<ProductA::transposed, ProductC::add>(ds, kScoreStride, q, at.row, dk, at.row,
                                                 padded_keys, columns, rows);
    product<ProductA::plain, ProductC::set>(ds, kScoreStride, k, at.row, dq, at.row, padded_rows,
                                            columns, padded_keys);
    add_dq(first, rows, key == 0, key + keys == a.keys);
  }

  void add_dbias(std::int64_t first, std::int64_t rows, std::int64_t key, std::int64_t keys) const {
    for (std::int64_t i = 0; i < rows; ++i) {
      float* const to = a.dbias.data + head * a.dbias.head + key - first - i + a.queries - 1;
      for (std::int64_t j = 0; j < keys; ++j) to[j] += ds[i * kScoreStride + j];
    }
  }

  void add_dq(std::int64_t first, std::int64_t rows, bool first_tile, bool last_tile) const {
    for (std::int64_t i = 0; i < rows; ++i) {
      T* out = row_of<T>(a.dq, first + i, head);
      if constexpr (sizeof(T) == sizeof(float)) {
        add_row(dq + i * at.row, a.width, a.scale, first_tile, out);
      } else {
        float* sum = scratch + at.dq_sum + (first + i) * a.width;
        add_row(dq + i * at.row, a.width, a.scale, first_tile, sum);
        if (last_tile) store_row(sum, a.width, 1.0f, out);
      }
    }
  }
};

template <class T>
void backward(const BackwardCall& a, ThreadPool& pool) {
  const bool one_each = a.heads <= pool.threads();  // then the workspace has a part per head
  pool.parallel(a.heads, [&](std::int64_t head, int worker) {
    Head<T>{a, head, a.workspace + (one_each ? head : worker) * a.scratch.floats}.run();
  });
}

}  // namespace

void attention_backward(const BackwardCall& a, ThreadPool& pool) {
  if (a.bf16) {
    backward<std::uint16_t>(a, pool);
  } else {
    backward<float>(a, pool);
  }
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
