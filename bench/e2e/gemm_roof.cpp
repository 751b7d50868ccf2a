#include "bench/e2e/gemm_roof.h"

#include <algorithm>

#include "core/to_size.h"
#include "ops/linear/sgemm.h"

namespace ballast::bench {

GemmRoof::GemmRoof(const BlockSize& size, int threads) : pool_(threads) {
  const std::int64_t dim = size.config.dim, ffn = size.config.ffn_dim;
  const auto layer = [&](std::int64_t rows, std::int64_t in, std::int64_t out) {
    products_.push_back({false, true, rows, out, in});   // y = x W^T
    products_.push_back({false, false, rows, in, out});  // dx = dy W
    products_.push_back({true, false, out, in, rows});   // dW = dy^T x
  };
  for (int i = 0; i < 6; ++i) layer(size.tokens, dim, dim);  // q, k, v, o; q and o of the text's
  for (int i = 0; i < 2; ++i) layer(size.config.text_len, dim, dim);  // k, v of the text
  layer(size.tokens, dim, ffn);
  layer(size.tokens, ffn, dim);
  std::int64_t a = 0, b = 0, c = 0;
  for (const Product& p : products_) {
    flops_ += 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
    a = std::max(a, p.m * p.k);
    b = std::max(b, p.k * p.n);
    c = std::max(c, p.m * p.n);
  }
  a_.assign(to_size(a), 0.5f);
  b_.assign(to_size(b), 0.25f);
  c_.assign(to_size(c), 0.0f);
  ops::warm_up_blas(pool_);
}

void GemmRoof::share_of(const Product& p, int thread) const {
  const bool by_rows = p.m > p.n;
  const std::int64_t whole = by_rows ? p.m : p.n, threads = pool_.threads();
  const std::int64_t begin = whole * thread / threads, end = whole * (thread + 1) / threads;
  const std::int64_t row = by_rows ? begin : 0, column = by_rows ? 0 : begin;
  const std::int64_t lda = p.transpose_a ? p.m : p.k, ldb = p.transpose_b ? p.k : p.n;
  ops::sgemm({.transpose_a = p.transpose_a,
              .transpose_b = p.transpose_b,
              .m = by_rows ? end - begin : p.m,
              .n = by_rows ? p.n : end - begin,
              .k = p.k,
              .a = a_.data() + (p.transpose_a ? row : row * lda),
              .lda = lda,
              .b = b_.data() + (p.transpose_b ? column * ldb : column),
              .ldb = ldb,
              .c = c_.data() + row * p.n + column,
              .ldc = p.n});
}

Times GemmRoof::step() {
  const Times begin = now();
  // Each thread goes through all its shares without waiting for the others in between.
  pool_.parallel(pool_.threads(), [&](std::int64_t thread, int) {
    for (const Product& p : products_) share_of(p, static_cast<int>(thread));
  });
  return now() - begin;
}

}  // namespace ballast::bench
