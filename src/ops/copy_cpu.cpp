#include <cstddef>

#include "core/convert.h"
#include "core/thread_pool.h"
#include "ops/kernels/strided_walk.h"

namespace ballast::ops::cpu::BALLAST_ISA {
namespace {

// One task moves this many elements: enough to outweigh taking a task, small enough to share out.
constexpr std::int64_t kTask = 1 << 16;
// Strided elements are gathered, converted and scattered in pieces that stay in the L1 cache.
constexpr std::int64_t kPiece = 256;

template <class E>
void move_strided(const std::byte* from, std::int64_t from_step, std::byte* to,
                  std::int64_t to_step, std::int64_t n) {
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(E));
  if (from_step == 0 && to_step == 1) {
    E e;
    std::memcpy(&e, from, sizeof e);
    for (std::int64_t i = 0; i < n; ++i) std::memcpy(to + i * kSize, &e, sizeof e);
    return;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    std::memcpy(to + i * to_step * kSize, from + i * from_step * kSize, sizeof(E));
  }
}

void move(const std::byte* from, std::int64_t from_step, std::byte* to, std::int64_t to_step,
          std::int64_t n, std::size_t size) {
  if (from_step == 1 && to_step == 1) {
    std::memcpy(to, from, static_cast<std::size_t>(n) * size);
  } else if (size == 1) {
    move_strided<std::uint8_t>(from, from_step, to, to_step, n);
  } else if (size == 2) {
    move_strided<std::uint16_t>(from, from_step, to, to_step, n);
  } else if (size == 4) {
    move_strided<std::uint32_t>(from, from_step, to, to_step, n);
  } else {
    move_strided<std::uint64_t>(from, from_step, to, to_step, n);
  }
}

// Dtypes that differ; steps and offsets in elements.
void convert_run(const std::byte* from, DType from_type, std::int64_t from_step, std::byte* to,
                 DType to_type, std::int64_t to_step, std::int64_t n, Rounding rounding) {
  if (from_step == 1 && to_step == 1) return convert(from, from_type, to, to_type, n, rounding);
  const auto from_size = static_cast<std::int64_t>(size_of(from_type));
  const auto to_size = static_cast<std::int64_t>(size_of(to_type));
  alignas(64) std::byte in[kPiece * 8], out[kPiece * 8];
  for (std::int64_t i = 0; i < n; i += kPiece) {
    const std::int64_t count = n - i < kPiece ? n - i : kPiece;
    const std::byte* a = from + i * from_step * from_size;
    std::byte* b = to + i * to_step * to_size;
    if (from_step != 1) {
      move(a, from_step, in, 1, count, size_of(from_type));
      a = in;
    }
    convert(a, from_type, to_step == 1 ? b : out, to_type, count, rounding);
    if (to_step != 1) move(out, 1, b, to_step, count, size_of(to_type));
  }
}

}  // namespace

void copy(const StridedWalk& walk, const std::byte* from, DType from_type, std::byte* to,
          DType to_type, Rounding rounding, ThreadPool* pool) {
  const auto from_size = static_cast<std::int64_t>(size_of(from_type));
  const auto to_size = static_cast<std::int64_t>(size_of(to_type));
  const std::int64_t from_step = walk.from[walk.rank - 1], to_step = walk.to[walk.rank - 1];
  const auto task = [&](std::int64_t t, int) {
    const std::int64_t begin = t * kTask;
    const std::int64_t end = walk.elements - begin < kTask ? walk.elements : begin + kTask;
    each_run(walk, begin, end, [&](std::int64_t i, std::int64_t j, std::int64_t n) {
      const std::byte* a = from + i * from_size;
      std::byte* b = to + j * to_size;
      if (from_type == to_type) {
        move(a, from_step, b, to_step, n, size_of(from_type));
      } else {
        convert_run(a, from_type, from_step, b, to_type, to_step, n, rounding);
      }
    });
  };
  const std::int64_t tasks = (walk.elements + kTask - 1) / kTask;
  if (pool) {
    pool->parallel(tasks, task);
  } else {
    for (std::int64_t t = 0; t < tasks; ++t) task(t, 0);
  }
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
