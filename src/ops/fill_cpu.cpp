#include <cstddef>
#include <cstring>

#include "core/thread_pool.h"
#include "ops/kernels/strided_walk.h"

namespace ballast::ops::cpu::BALLAST_ISA {
namespace {

constexpr std::int64_t kFillTask = 1 << 17;  // elements

template <class E>
void fill_run(std::byte* to, std::int64_t step, std::int64_t n, std::uint64_t pattern) {
  const auto e = static_cast<E>(pattern);
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(E));
  if (step == 1) {
    for (std::int64_t i = 0; i < n; ++i) std::memcpy(to + i * kSize, &e, sizeof e);
  } else {
    for (std::int64_t i = 0; i < n; ++i) std::memcpy(to + i * step * kSize, &e, sizeof e);
  }
}

}  // namespace

void fill(const StridedWalk& walk, std::byte* to, std::size_t size, std::uint64_t pattern,
          ThreadPool* pool) {
  const std::int64_t step = walk.to[walk.rank - 1];
  const auto task = [&](std::int64_t t, int) {
    const std::int64_t begin = t * kFillTask;
    const std::int64_t end = walk.elements - begin < kFillTask ? walk.elements : begin + kFillTask;
    each_run(walk, begin, end, [&](std::int64_t, std::int64_t j, std::int64_t n) {
      std::byte* p = to + j * static_cast<std::int64_t>(size);
      if (size == 1) {
        fill_run<std::uint8_t>(p, step, n, pattern);
      } else if (size == 2) {
        fill_run<std::uint16_t>(p, step, n, pattern);
      } else if (size == 4) {
        fill_run<std::uint32_t>(p, step, n, pattern);
      } else {
        fill_run<std::uint64_t>(p, step, n, pattern);
      }
    });
  };
  const std::int64_t tasks = (walk.elements + kFillTask - 1) / kFillTask;
  if (pool) {
    pool->parallel(tasks, task);
  } else {
    for (std::int64_t t = 0; t < tasks; ++t) task(t, 0);
  }
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
