#include "ops/kernels/elementwise.h"
#include "ops/modulation_table.h"

namespace ballast::ops::cpu::BALLAST_ISA {
namespace {

using simd::BALLAST_ISA::with_dtype;

// Columns of one task: 5 to 10 tasks at the widths of the models, with all their rows.
constexpr std::int64_t kTablePanel = 1024;

// f(begin, end) for panels of columns; sums over rows then need no second thread's result.
template <class F>
void each_panel(ThreadPool& pool, std::int64_t columns, F&& f) {
  pool.parallel((columns + kTablePanel - 1) / kTablePanel, [&](std::int64_t task, int) {
    const std::int64_t begin = task * kTablePanel, end = begin + kTablePanel;
    f(begin, end < columns ? end : columns);
  });
}

void add_row(const float* from, float* to, std::int64_t begin, std::int64_t end) {
  each_vector(begin, end, [=](std::int64_t i, std::int64_t n) {
    write<DType::f32>(to + i, read<DType::f32>(to + i, n) + read<DType::f32>(from + i, n), n);
  });
}

}  // namespace

void modulation_table(const ModulationTable& a, ThreadPool& pool) {
  const std::int64_t rows = a.m.shape[0], timesteps = a.m.shape[1], width = a.m.shape[2];
  const auto* e = reinterpret_cast<const float*>(a.e.data);
  auto* m = reinterpret_cast<float*>(a.m.data);
  with_dtype<DType::f32, DType::bf16, DType::f16>(a.modulation.dtype, [&](auto tag) {
    constexpr DType M = tag;
    const auto* modulation = reinterpret_cast<const Element<M>*>(a.modulation.data);
    each_panel(pool, width, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t k = 0; k < rows; ++k) {
        for (std::int64_t t = 0; t < timesteps; ++t) {
          const Element<M>* bias = modulation + k * width;
          const float* shift = e + (a.shared_e ? t : t * rows + k) * width;
          float* out = m + (k * timesteps + t) * width;
          each_vector(begin, end, [=](std::int64_t i, std::int64_t n) {
            write<DType::f32>(out + i, read<M>(bias + i, n) + read<DType::f32>(shift + i, n), n);
          });
        }
      }
    });
  });
}

void modulation_table_backward(const ModulationTableBackward& a, ThreadPool& pool) {
  const std::int64_t rows = a.dm.shape[0], timesteps = a.dm.shape[1], width = a.dm.shape[2];
  const auto* dm = reinterpret_cast<const float*>(a.dm.data);
  auto* de = reinterpret_cast<float*>(a.de.data);
  auto* dmodulation = reinterpret_cast<float*>(a.dmodulation.data);
  each_panel(pool, width, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t k = 0; k < rows; ++k) {
      for (std::int64_t t = 0; t < timesteps; ++t) {
        const float* from = dm + (k * timesteps + t) * width;
        if (de) add_row(from, de + (a.shared_e ? t : t * rows + k) * width, begin, end);
        if (dmodulation) add_row(from, dmodulation + k * width, begin, end);
      }
    }
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
