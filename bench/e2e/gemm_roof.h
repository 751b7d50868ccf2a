#pragma once

#include <cstdint>
#include <vector>

#include "bench/e2e/block_run.h"
#include "core/thread_pool.h"

namespace ballast::bench {

// What the BLAS reaches by itself: the matrix products of the block's linear layers, forward, dx
// and dw, as one whole sgemm per thread over an equal share of the output's rows or columns,
// whichever is longer. No bias, no expansion, no tasks to wait for but the last.
class GemmRoof {
 public:
  GemmRoof(const BlockSize& size, int threads);

  Times step();
  double flops() const { return flops_; }

 private:
  struct Product {
    bool transpose_a, transpose_b;
    std::int64_t m, n, k;
  };
  void share_of(const Product& p, int thread) const;

  std::vector<Product> products_;
  ThreadPool pool_;
  std::vector<float> a_, b_;
  mutable std::vector<float> c_;
  double flops_ = 0;
};

}  // namespace ballast::bench
