// simd::exp and simd::tanh over arrays, so that a test can reach them.
#include "core/simd.h"

namespace ballast::test::BALLAST_ISA {

using namespace simd::BALLAST_ISA;

void exp_of(const float* x, float* y, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, exp(load(x + i)));
  if (i < n) store_partial(y + i, exp(load_partial(x + i, n - i)), n - i);
}

void tanh_of(const float* x, float* y, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, tanh(load(x + i)));
  if (i < n) store_partial(y + i, tanh(load_partial(x + i, n - i)), n - i);
}

float sum_of_lanes(const float* x) { return reduce_add(load(x)); }
float max_of_lanes(const float* x) { return reduce_max(load(x)); }
int lanes() { return kLanes; }

}  // namespace ballast::test::BALLAST_ISA
