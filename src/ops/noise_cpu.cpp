#include "core/thread_pool.h"
#include "ops/noise.h"

namespace ballast::ops::cpu::BALLAST_ISA {

// The logarithm, sine and cosine of the C library decide the bits, so there is nothing for vectors
// to do but the words. 4096 elements are about a tenth of a millisecond.
void noise(const Noise& a, ThreadPool& pool) {
  constexpr std::int64_t kTask = 4096;
  const std::int64_t n = a.to.shape.elements();
  auto* to = reinterpret_cast<float*>(a.to.data);
  pool.parallel((n + kTask - 1) / kTask, [&](std::int64_t task, int) {
    const std::int64_t begin = task * kTask, left = n - begin;
    fill_normal(a.source, a.first + static_cast<std::uint64_t>(begin), to + begin,
                left < kTask ? left : kTask);
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
