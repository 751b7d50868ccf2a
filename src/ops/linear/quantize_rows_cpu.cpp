#include "core/simd_convert.h"
#include "core/thread_pool.h"
#include "core/to_size.h"
#include "ops/linear/quantize_rows.h"

namespace ballast::ops::cpu::BALLAST_ISA {
namespace {

using namespace simd::BALLAST_ISA;
using simd::BALLAST_ISA::kLanes;  // plan/program.h has one of its own

constexpr std::int64_t kQuantizedRowsPerTask = 8;

template <DType Q>
constexpr float kMax = Q == DType::i8        ? 127.0f
                       : Q == DType::f8_e4m3 ? 448.0f
                                             : 57344.0f;

// The bits of max|w|. Magnitudes compare like integers, and so NaN is above infinity is above all
// numbers: a row with a NaN cannot hide it.
template <DType W>
std::uint32_t max_magnitude(const Element<W>* w, std::int64_t n) {
  u32v most = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const u32v a = bits(load_f32<W>(w + i)) & 0x7fffffffu;
    most = a > most ? a : most;
  }
  if (i < n) {
    const u32v a = bits(load_f32_partial<W>(w + i, n - i)) & 0x7fffffffu;
    most = a > most ? a : most;
  }
  std::uint32_t result = 0;
  for (int lane = 0; lane < kLanes; ++lane) result = most[lane] > result ? most[lane] : result;
  return result;
}

// NaN and infinity stay what they are; the caller refuses them.
template <DType Q>
float scale_of(std::uint32_t magnitude) {
  float most;
  std::memcpy(&most, &magnitude, sizeof most);
  const float scale = most / kMax<Q>;
  return scale < 1e-8f ? 1e-8f : scale;
}

template <DType Q>
Storage<Q> quantized(f32v x) {
  if constexpr (Q == DType::i8) {
    x = min(max(x, splat(-127.0f)), splat(127.0f));
    // 1.5 * 2^23 has 1 as its last place: the addition rounds to an integer in the low bits.
    const u32v integer = bits(x + 12582912.0f);
    return reinterpret_cast<Storage<Q>>(low_bytes(integer));
  } else {
    return narrow<Q, Rounding::saturating>(x);
  }
}

template <DType W, DType Q>
void quantize_row(const Element<W>* w, Element<Q>* q, std::int64_t n, float scale) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Storage<Q> v = quantized<Q>(load_f32<W>(w + i) / scale);
    std::memcpy(q + i, &v, sizeof v);
  }
  if (i < n) {
    const Storage<Q> v = quantized<Q>(load_f32_partial<W>(w + i, n - i) / scale);
    std::memcpy(q + i, &v, to_size(n - i));
  }
}

template <DType W, DType Q>
void quantize(const QuantizeRows& a, ThreadPool& pool) {
  const std::int64_t rows = a.w.shape[0], columns = a.w.shape[1];
  const std::int64_t w_stride = a.w.strides[0], q_stride = a.q.strides[0];
  const bool per_row = a.scale.shape[0] == rows;
  const auto* w = reinterpret_cast<const Element<W>*>(a.w.data);
  auto* q = reinterpret_cast<Element<Q>*>(a.q.data);
  auto* scale = reinterpret_cast<float*>(a.scale.data);
  const std::int64_t tasks = (rows + kQuantizedRowsPerTask - 1) / kQuantizedRowsPerTask;
  const auto each_row = [&](std::int64_t task, auto&& f) {
    const std::int64_t begin = task * kQuantizedRowsPerTask;
    const std::int64_t end =
        rows - begin < kQuantizedRowsPerTask ? rows : begin + kQuantizedRowsPerTask;
    for (std::int64_t n = begin; n < end; ++n) f(n);
  };
  if (!per_row) {
    std::uint32_t most = 0;
    pool.parallel(tasks, [&](std::int64_t task, int) {
      each_row(task, [&](std::int64_t n) {
        const std::uint32_t row = max_magnitude<W>(w + n * w_stride, columns);
        // A maximum of integers does not depend on the order.
        std::uint32_t seen = __atomic_load_n(&most, __ATOMIC_RELAXED);
        while (row > seen && !__atomic_compare_exchange_n(&most, &seen, row, true, __ATOMIC_RELAXED,
                                                          __ATOMIC_RELAXED)) {
        }
      });
    });
    scale[0] = scale_of<Q>(most);
  }
  pool.parallel(tasks, [&](std::int64_t task, int) {
    each_row(task, [&](std::int64_t n) {
      if (per_row) scale[n] = scale_of<Q>(max_magnitude<W>(w + n * w_stride, columns));
      quantize_row<W, Q>(w + n * w_stride, q + n * q_stride, columns, scale[per_row ? n : 0]);
    });
  });
}

}  // namespace

void quantize_rows(const QuantizeRows& a, ThreadPool& pool) {
  with_dtype<DType::f32, DType::bf16, DType::f16>(a.w.dtype, [&](auto from) {
    with_dtype<DType::i8, DType::f8_e4m3, DType::f8_e5m2>(
        a.q.dtype, [&](auto to) { quantize<from(), to()>(a, pool); });
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
