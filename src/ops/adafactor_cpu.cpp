#include <cmath>

#include "ops/adafactor.h"
#include "ops/kernels/ordered_sum_simd.h"
#include "ops/kernels/parameter_simd.h"

namespace ballast::ops::cpu::BALLAST_ISA {

using simd::BALLAST_ISA::with_dtype;

namespace {

constexpr std::int64_t kSumPanel = 64;  // columns that one task sums

// f(row) for all rows, on all threads.
template <class F>
inline void each_row(ThreadPool& pool, std::int64_t rows, std::int64_t columns, F&& f) {
  const std::int64_t per_task = columns < kElementsPerTask ? kElementsPerTask / columns : 1;
  pool.parallel((rows + per_task - 1) / per_task, [&](std::int64_t task, int) {
    const std::int64_t end = (task + 1) * per_task;
    for (std::int64_t row = task * per_task; row < (end < rows ? end : rows); ++row) f(row);
  });
}

inline double sum_of(const double* x, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += x[i];
  return sum;
}

struct Rates {
  float decay, rate;  // p = decay p - rate u
};

// Nothing where there is no gradient: without eps the second moment may be 0 there.
inline f32v where_any(f32v gradient, f32v u) { return gradient == 0.0f ? f32v{} : u; }

// square_sum_p and square_sum_u over n elements.
inline Rates rates(const Adafactor& a, double square_sum_p, double square_sum_u, double n) {
  const AdafactorOptions& o = a.options;
  const double k = static_cast<double>(a.step);
  double rate = a.learning_rate;
  if (o.relative_step) {
    const double limit = o.warmup_init ? 1e-6 * k : 1e-2, natural = 1 / ::sqrt(k);
    rate = limit < natural ? limit : natural;
  }
  if (o.scale_parameter) {
    const double rms = ::sqrt(square_sum_p / n);
    rate *= rms > o.eps_scale ? rms : o.eps_scale;
  }
  const double excess = ::sqrt(square_sum_u / n) / o.clip_threshold;
  return {.decay = static_cast<float>(1 - rate * o.weight_decay),
          .rate = static_cast<float>(rate / (excess > 1 ? excess : 1))};
}

template <DType G, class MakeWriter>
void update_vector(const Adafactor& a, double b, MakeWriter&& make_writer, ThreadPool& pool) {
  const std::int64_t n = a.p.shape.elements();
  const float scale = scale_of(a.grad_scale);
  const float keep = static_cast<float>(b), add = static_cast<float>(1 - b);
  const float eps = static_cast<float>(a.options.eps_rows);
  const auto* g = reinterpret_cast<const Element<G>*>(a.g.data);
  auto* v = reinterpret_cast<float*>(a.v.data);
  double sum_p = 0, sum_u = 0;
  add_ordered(pool, n, &sum_p, [&](std::int64_t begin, std::int64_t end) {
    auto p = make_writer();
    return square_sum(begin, end, [&](std::int64_t i, std::int64_t m) { return p.read(i, m); });
  });
  add_ordered(pool, n, &sum_u, [&](std::int64_t begin, std::int64_t end) {
    return square_sum(begin, end, [&](std::int64_t i, std::int64_t m) {
      const f32v x = read<G>(g + i, m) * scale;
      const f32v now = read<DType::f32>(v + i, m) * keep + (x * x + eps) * add;
      write<DType::f32>(v + i, now, m);
      return where_any(x, x / sqrt(now));
    });
  });
  const Rates r = rates(a, sum_p, sum_u, static_cast<double>(n));
  each_range(pool, n, [&](std::int64_t begin, std::int64_t end) {
    auto p = make_writer();
    each_vector(begin, end, [&](std::int64_t i, std::int64_t m) {
      const f32v x = read<G>(g + i, m) * scale;
      const f32v u = where_any(x, x / sqrt(read<DType::f32>(v + i, m)));
      p.write(i, m, p.read(i, m) * r.decay, u * -r.rate);
    });
  });
}

template <DType G, class MakeWriter>
void update_matrices(const Adafactor& a, double b, MakeWriter&& make_writer, ThreadPool& pool) {
  const Shape& shape = a.p.shape;
  const std::int64_t height = shape[-2], width = shape[-1], rows = shape.rows();
  const std::int64_t matrices = rows / height;
  const float scale = scale_of(a.grad_scale);
  const double eps = a.options.eps_rows;
  const auto* g = reinterpret_cast<const Element<G>*>(a.g.data);
  auto* row = reinterpret_cast<float*>(a.row.data);
  auto* column = reinterpret_cast<float*>(a.column.data);
  auto* row_sum = reinterpret_cast<double*>(a.workspace.data);
  double* row_mean = row_sum + rows;
  const auto gradient = [=](std::int64_t i, std::int64_t n) { return read<G>(g + i, n) * scale; };

  each_row(pool, rows, width, [&](std::int64_t r) {
    auto p = make_writer();
    const std::int64_t begin = r * width, end = begin + width;
    row_sum[r] =
        square_sum(begin, end, [&](std::int64_t i, std::int64_t n) { return p.read(i, n); });
    const double mean = square_sum(begin, end, gradient) / static_cast<double>(width) + eps;
    row[r] = static_cast<float>(b * row[r] + (1 - b) * mean);
  });
  const double sum_p = sum_of(row_sum, rows);
  for (std::int64_t k = 0; k < matrices; ++k) {
    double sum = 0;
    for (std::int64_t r = k * height; r < (k + 1) * height; ++r) sum += row[r];
    row_mean[k] = sum / static_cast<double>(height);
  }

  const std::int64_t panels = (width + kSumPanel - 1) / kSumPanel;
  pool.parallel(matrices * panels, [&](std::int64_t task, int) {
    const std::int64_t k = task / panels, first = task % panels * kSumPanel;
    const std::int64_t end = first + kSumPanel < width ? first + kSumPanel : width;
    double sums[kSumPanel] = {};
    for (std::int64_t r = k * height; r < (k + 1) * height; ++r) {
      each_vector(first, end, [&](std::int64_t c, std::int64_t n) {
        const f32v x = gradient(r * width + c, n);
        for (int j = 0; j < kLanes; ++j) {
          if (j < n) sums[c - first + j] += static_cast<double>(x[j]) * x[j];
        }
      });
    }
    for (std::int64_t c = first; c < end; ++c) {
      float& state = column[k * width + c];
      const double mean = sums[c - first] / static_cast<double>(height) + eps;
      state = static_cast<float>(b * state + (1 - b) * mean);
    }
  });

  // u of n elements from column c of row r on.
  const auto step = [&](std::int64_t r, float of_row, std::int64_t c, std::int64_t n) {
    const f32v x = gradient(r * width + c, n);
    const f32v of_column = read<DType::f32>(column + r / height * width + c, n);
    return where_any(x, x * (of_row / sqrt(of_column)));
  };
  const auto row_factor = [&](std::int64_t r) {
    return static_cast<float>(1 / __builtin_sqrt(row[r] / row_mean[r / height]));
  };
  each_row(pool, rows, width, [&](std::int64_t r) {
    const float of_row = row_factor(r);
    row_sum[r] =
        square_sum(0, width, [&](std::int64_t c, std::int64_t n) { return step(r, of_row, c, n); });
  });
  const Rates rate = rates(a, sum_p, sum_of(row_sum, rows), static_cast<double>(shape.elements()));
  each_row(pool, rows, width, [&](std::int64_t r) {
    auto p = make_writer();
    const float of_row = row_factor(r);
    each_vector(0, width, [&](std::int64_t c, std::int64_t n) {
      const std::int64_t i = r * width + c;
      p.write(i, n, p.read(i, n) * rate.decay, step(r, of_row, c, n) * -rate.rate);
    });
  });
}

}  // namespace

void adafactor(const Adafactor& a, ThreadPool& pool) {
  const double keep = 1 - ::pow(static_cast<double>(a.step), a.options.decay_rate);
  with_writer(a.p, a.rounding, [&](auto make_writer) {
    with_dtype<DType::f32, DType::bf16>(a.g.dtype, [&](auto gradient_type) {
      constexpr DType G = gradient_type;
      if (a.p.shape.rank() >= 2) {
        update_matrices<G>(a, keep, make_writer, pool);
      } else {
        update_vector<G>(a, keep, make_writer, pool);
      }
    });
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
