#include "core/simd_convert.h"
#include "core/thread_pool.h"
#include "ops/linear/fp8_linear_kernels.h"

namespace ballast::ops::cpu::BALLAST_ISA {
namespace {

using namespace simd::BALLAST_ISA;

constexpr std::int64_t kRowsPerTask = 16;

}  // namespace

void widen_rows(const WidenRows& a, ThreadPool& pool) {
  constexpr DType kCode = DType::f8_e4m3;
  const std::int64_t tasks = (a.rows + kRowsPerTask - 1) / kRowsPerTask;
  pool.parallel(tasks, [&](std::int64_t task, int) {
    const std::int64_t begin = task * kRowsPerTask;
    const std::int64_t end = a.rows - begin < kRowsPerTask ? a.rows : begin + kRowsPerTask;
    for (std::int64_t r = begin; r < end; ++r) {
      const auto* from = reinterpret_cast<const Element<kCode>*>(a.from) + r * a.stride;
      float* to = a.to + r * a.columns;
      const float scale = a.scale[r];
      std::int64_t c = 0;
      for (; c + kLanes <= a.columns; c += kLanes) {
        store_f32<DType::f32>(to + c, load_f32<kCode>(from + c) * scale);
      }
      if (c < a.columns) {
        const std::int64_t n = a.columns - c;
        store_f32_partial<DType::f32>(to + c, load_f32_partial<kCode>(from + c, n) * scale, n);
      }
    }
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
