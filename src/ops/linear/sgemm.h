#pragma once

#include <cstdint>

#include "core/bytes.h"

namespace ballast {
class ThreadPool;
}

namespace ballast::ops {

// c = alpha * op(a) * op(b) + beta * c, all f32 and row-major; op transposes where its flag says
// so. op(a) is [m, k], op(b) is [k, n], c is [m, n]; lda, ldb, ldc are the row strides of a, b, c
// as they lie in memory. With beta = 0, c is not read.
//
// Runs on the calling thread alone; several threads may call it at once. An element's bits depend
// on the sizes of the call, so callers cut their work into calls of fixed sizes.
struct Sgemm {
  bool transpose_a = false, transpose_b = false;
  std::int64_t m = 0, n = 0, k = 0;
  float alpha = 1;
  const float* a = nullptr;
  std::int64_t lda = 0;
  const float* b = nullptr;
  std::int64_t ldb = 0;
  float beta = 0;
  float* c = nullptr;
  std::int64_t ldc = 0;
};
void sgemm(const Sgemm& g);

// The BLAS packs its operands into one buffer per thread, mapped at the thread's first call. This
// makes and touches those of a pool's threads, so that no call maps memory afterwards. Run it once
// before the first step.
void warm_up_blas(ThreadPool& pool);

// What one such buffer adds to the process's memory: the packed panels of a and b that are being
// multiplied, for calls with m up to kBlasRows and any n and k. 0.9 MiB on a Neoverse N1, up to
// this with the largest panels of the x86-64 kernels. (A buffer's address space is larger, 32 MiB
// and more, but pages that no call touches are never there.)
inline constexpr Bytes kBlasBufferTouched{2ull << 20};
inline constexpr std::int64_t kBlasRows = 512;

}  // namespace ballast::ops
