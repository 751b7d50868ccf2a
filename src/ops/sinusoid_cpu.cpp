#include <cmath>

#include "core/thread_pool.h"
#include "ops/sinusoid.h"

namespace ballast::ops::cpu::BALLAST_ISA {

// One task per timestep: there are one or two of them, and a row is 256 numbers, so the library's
// f64 functions are fast enough.
void sinusoid(const Sinusoid& a, ThreadPool& pool) {
  const auto* t = reinterpret_cast<const double*>(a.t.data);
  auto* y = reinterpret_cast<float*>(a.y.data);
  const std::int64_t half = a.y.shape[1] / 2;
  pool.parallel(a.t.shape[0], [=](std::int64_t row, int) {
    float* out = y + row * 2 * half;
    for (std::int64_t i = 0; i < half; ++i) {
      const double frequency = ::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
      const double angle = t[row] * frequency;
      out[i] = static_cast<float>(::cos(angle));
      out[half + i] = static_cast<float>(::sin(angle));
    }
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
