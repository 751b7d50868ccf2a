#include "ops/adafactor_cuda.h"
#include "ops/kernels/ordered_sum_cuda.cuh"
#include "ops/kernels/parameter_cuda.cuh"

namespace ballast::ops::cuda {
namespace {

// p = decay p - rate u
struct Rates {
  float decay, rate;
};

// What the kernels leave for each other behind the partial sums of the queue.
struct Scalars {
  double sum_p, sum_u;
  Rates rates;
};
static_assert(sizeof(Scalars) <= kSumScalars * sizeof(double), "they fit");

struct Rule {
  double n, eps_scale, clip_threshold, weight_decay, rate;
  bool scale_parameter;
};

__global__ void make_rates(Scalars* s, Rule r) {
  double rate = r.rate;
  if (r.scale_parameter) {
    const double rms = sqrt(s->sum_p / r.n);
    rate *= rms > r.eps_scale ? rms : r.eps_scale;
  }
  const double excess = sqrt(s->sum_u / r.n) / r.clip_threshold;
  s->rates = {static_cast<float>(1 - rate * r.weight_decay),
              static_cast<float>(rate / (excess > 1 ? excess : 1))};
}

// Nothing where there is no gradient: without eps the second moment may be 0 there.
__device__ __forceinline__ float where_any(float gradient, float u) {
  return gradient == 0.0f ? 0.0f : u;
}

// --- vectors: v in the pass that sums u^2, then p.

template <class G>
struct VectorTerm {
  const G* g;
  float* v;
  const void* grad_scale;
  float keep, share, eps;

  struct Item {
    float g, v;
  };
  struct Thread {
    VectorTerm t;
    float scale;
    __device__ Item load(std::int64_t i) const { return {to_float(t.g[i]), t.v[i]}; }
    __device__ double add(const Item& item, std::int64_t i, double sum) const {
      const float x = mul(item.g, scale);
      const float now = cuda::add(mul(item.v, t.keep), mul(cuda::add(mul(x, x), t.eps), t.share));
      t.v[i] = now;
      const float u = where_any(x, __fdiv_rn(x, __fsqrt_rn(now)));
      return add_product(u, u, sum);
    }
    __device__ double finish(double sum) const { return sum; }
  };
  __device__ Thread begin() const { return {*this, scale_of(grad_scale)}; }
};

template <class P, class G>
struct VectorUpdate {
  P* p;
  const float* v;
  const G* g;
  const void* grad_scale;
  const Scalars* scalars;
  ParameterRounding rounding;

  template <bool kWhole>
  __device__ void run(std::int64_t i, int count) const {
    float x[8], second[8], base[8];
    load_some<kWhole>(g + i, count, x);
    load_some<kWhole>(v + i, count, second);
    load_some<kWhole>(p + i, count, base);
    const float scale = scale_of(grad_scale);
    const Rates r = scalars->rates;
    std::uint32_t words[8];
    words_of<P>(rounding, i, words);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float gradient = mul(x[k], scale);
      const float u = where_any(gradient, __fdiv_rn(gradient, __fsqrt_rn(second[k])));
      base[k] = mul(base[k], r.decay);
      x[k] = mul(u, -r.rate);
    }
    write_parameter<kWhole>(rounding, p, i, count, base, x, words);
  }
};

// --- matrices.

template <class P, class G>
struct Matrices {
  P* p;
  const G* g;
  const void* grad_scale;
  float *row, *column;
  double *row_sum, *row_mean;
  std::int64_t rows, height, width;
  double keep, eps;

  __device__ float row_factor(std::int64_t r) const {
    return static_cast<float>(1 / sqrt(static_cast<double>(row[r]) / row_mean[r / height]));
  }
};
__device__ __forceinline__ float step_of(float gradient, float of_row, float of_column) {
  return where_any(gradient, mul(gradient, __fdiv_rn(of_row, __fsqrt_rn(of_column))));
}

// Sixteen threads per row, because their order is that of the CPU: sums of p^2 and the row's state.
template <class P, class G>
__global__ void __launch_bounds__(kSumThreads)
    row_states(const __grid_constant__ Matrices<P, G> a) {
  const std::int64_t r = (blockIdx.x * std::int64_t{kSumThreads} + threadIdx.x) / 16;
  const std::int64_t begin = r < a.rows ? r * a.width : 0, end = r < a.rows ? begin + a.width : 0;
  const float scale = scale_of(a.grad_scale);
  const auto add_square = [](float x, std::int64_t, double s) { return add_product(x, x, s); };
  const double of_p = sixteen_sums(
      begin, end, [&](std::int64_t i) { return to_float(a.p[i]); }, add_square);
  const double of_g = sixteen_sums(
      begin, end, [&](std::int64_t i) { return mul(to_float(a.g[i]), scale); }, add_square);
  if (threadIdx.x % 16 != 0 || r >= a.rows) return;
  a.row_sum[r] = of_p;
  const double mean = of_g / static_cast<double>(a.width) + a.eps;
  a.row[r] = static_cast<float>(a.keep * a.row[r] + (1 - a.keep) * mean);
}

__global__ void add_rows(const double* row_sum, std::int64_t rows, double* total) {
  const double sum = add_in_order(row_sum, rows, 0.0);
  if (threadIdx.x == 0) *total = sum;
}

// A block per matrix.
__global__ void row_means(const float* row, std::int64_t height, double* row_mean) {
  const double sum = add_in_order(row + blockIdx.x * height, height, 0.0);
  if (threadIdx.x == 0) row_mean[blockIdx.x] = sum / static_cast<double>(height);
}

// A thread per column adds its rows in order, sixteen of them in flight; blocks of one warp spread
// over all multiprocessors.
template <class P, class G>
__global__ void column_states(const __grid_constant__ Matrices<P, G> a) {
  constexpr int kFlight = 16;
  const std::int64_t c = blockIdx.x * std::int64_t{32} + threadIdx.x, matrix = blockIdx.y;
  if (c >= a.width) return;
  const float scale = scale_of(a.grad_scale);
  const G* g = a.g + matrix * a.height * a.width + c;
  double sum = 0;
  std::int64_t r = 0;
  for (; r + kFlight <= a.height; r += kFlight) {
    float x[kFlight];
#pragma unroll
    for (int k = 0; k < kFlight; ++k) x[k] = mul(to_float(g[(r + k) * a.width]), scale);
#pragma unroll
    for (int k = 0; k < kFlight; ++k) sum = add_product(x[k], x[k], sum);
  }
  for (; r < a.height; ++r) {
    const float x = mul(to_float(g[r * a.width]), scale);
    sum = add_product(x, x, sum);
  }
  float& state = a.column[matrix * a.width + c];
  const double mean = sum / static_cast<double>(a.height) + a.eps;
  state = static_cast<float>(a.keep * state + (1 - a.keep) * mean);
}

template <class P, class G>
__global__ void __launch_bounds__(kSumThreads)
    step_squares(const __grid_constant__ Matrices<P, G> a) {
  struct Item {
    float g, column;
  };
  const std::int64_t r = (blockIdx.x * std::int64_t{kSumThreads} + threadIdx.x) / 16;
  const bool here = r < a.rows;
  const float scale = scale_of(a.grad_scale), of_row = here ? a.row_factor(r) : 0.0f;
  const G* g = a.g + (here ? r * a.width : 0);
  const float* column = a.column + (here ? r / a.height * a.width : 0);
  const double sum = sixteen_sums(
      0, here ? a.width : 0,
      [&](std::int64_t c) {
        return Item{mul(to_float(g[c]), scale), column[c]};
      },
      [&](const Item& x, std::int64_t, double s) {
        const float u = step_of(x.g, of_row, x.column);
        return add_product(u, u, s);
      });
  if (threadIdx.x % 16 == 0 && here) a.row_sum[r] = sum;
}

template <bool kWhole, class P, class G>
__device__ __forceinline__ void update_eight(const Matrices<P, G>& a, const Rates& rates,
                                             const ParameterRounding& rounding, std::int64_t r,
                                             std::int64_t c, int count) {
  const std::int64_t i = r * a.width + c;
  float x[8], column[8], base[8];
  load_some<kWhole>(a.g + i, count, x);
  load_some<kWhole>(a.column + r / a.height * a.width + c, count, column);
  load_some<kWhole>(a.p + i, count, base);
  const float scale = scale_of(a.grad_scale), of_row = a.row_factor(r);
  std::uint32_t words[8];
  words_of<P>(rounding, i, words);
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    base[k] = mul(base[k], rates.decay);
    x[k] = mul(step_of(mul(x[k], scale), of_row, column[k]), -rates.rate);
  }
  write_parameter<kWhole>(rounding, a.p, i, count, base, x, words);
}

// A thread takes eight neighbours of a row.
template <class P, class G>
__global__ void __launch_bounds__(kEachThreads)
    update_matrices(const __grid_constant__ Matrices<P, G> a,
                    const __grid_constant__ ParameterRounding rounding, const Scalars* scalars,
                    bool aligned) {
  const std::int64_t per_row = (a.width + 7) / 8, all = a.rows * per_row;
  const Rates rates = scalars->rates;
  for (std::int64_t i = blockIdx.x * std::int64_t{kEachThreads} + threadIdx.x; i < all;
       i += std::int64_t{gridDim.x} * kEachThreads) {
    const std::int64_t r = i / per_row, c = i % per_row * 8, left = a.width - c;
    if (aligned) {
      update_eight<true>(a, rates, rounding, r, c, 8);
    } else {
      update_eight<false>(a, rates, rounding, r, c, left < 8 ? static_cast<int>(left) : 8);
    }
  }
}

template <class P, class G>
void run_vector(const Adafactor& a, const Rule& rule, Scalars* scalars, void* stream) {
  const std::int64_t n = a.p.elements();
  P* p = static_cast<P*>(a.p.data);
  const G* g = static_cast<const G*>(a.g.data);
  float* v = static_cast<float*>(a.v.data);
  add_ordered(SquareTerm<P>{p}, n, &scalars->sum_p, a.scratch, stream, "adafactor");
  add_ordered(VectorTerm<G>{g, v, a.grad_scale.data, static_cast<float>(a.keep),
                            static_cast<float>(1 - a.keep), static_cast<float>(a.eps_rows)},
              n, &scalars->sum_u, a.scratch, stream, "adafactor");
  make_rates<<<1, 1, 0, stream_of(stream)>>>(scalars, rule);
  check_launch("adafactor");
  run_each(VectorUpdate<P, G>{p, v, g, a.grad_scale.data, scalars, a.rounding}, n,
           sixteen(p) && sixteen(g) && sixteen(v) && sixteen(a.rounding.carry), stream,
           "adafactor");
}

template <class P, class G>
void run_matrices(const Adafactor& a, const Rule& rule, Scalars* scalars, void* stream) {
  Matrices<P, G> m = {};
  m.p = static_cast<P*>(a.p.data);
  m.g = static_cast<const G*>(a.g.data);
  m.grad_scale = a.grad_scale.data;
  m.row = static_cast<float*>(a.row.data);
  m.column = static_cast<float*>(a.column.data);
  m.height = a.p.shape[a.p.rank - 2];
  m.width = a.p.shape[a.p.rank - 1];
  m.rows = a.p.elements() / m.width;
  m.row_sum = static_cast<double*>(a.workspace.data);
  m.row_mean = m.row_sum + m.rows;
  m.keep = a.keep;
  m.eps = a.eps_rows;
  const std::int64_t matrices = m.rows / m.height;
  const cudaStream_t s = stream_of(stream);
  const unsigned row_blocks = blocks_for(m.rows * 16, kSumThreads);
  row_states<<<row_blocks, kSumThreads, 0, s>>>(m);
  check_launch("adafactor");
  add_rows<<<1, 256, 0, s>>>(m.row_sum, m.rows, &scalars->sum_p);
  check_launch("adafactor");
  row_means<<<static_cast<unsigned>(matrices), 256, 0, s>>>(m.row, m.height, m.row_mean);
  check_launch("adafactor");
  // The second dimension of a grid is short; stacks are of a few matrices.
  constexpr std::int64_t kMax = 65535;
  for (std::int64_t first = 0; first < matrices; first += kMax) {
    Matrices<P, G> part = m;
    part.g += first * m.height * m.width;
    part.column += first * m.width;
    const std::int64_t here = matrices - first < kMax ? matrices - first : kMax;
    column_states<<<dim3(blocks_for(m.width, 32), static_cast<unsigned>(here)), 32, 0, s>>>(part);
    check_launch("adafactor");
  }
  step_squares<<<row_blocks, kSumThreads, 0, s>>>(m);
  check_launch("adafactor");
  add_rows<<<1, 256, 0, s>>>(m.row_sum, m.rows, &scalars->sum_u);
  check_launch("adafactor");
  make_rates<<<1, 1, 0, s>>>(scalars, rule);
  check_launch("adafactor");
  const bool aligned = m.width % 8 == 0 && sixteen(m.p) && sixteen(m.g) && sixteen(m.column) &&
                       sixteen(a.rounding.carry);
  update_matrices<<<some_blocks(m.rows * ((m.width + 7) / 8), kEachThreads), kEachThreads, 0, s>>>(
      m, a.rounding, scalars, aligned);
  check_launch("adafactor");
}

}  // namespace

void adafactor(const Adafactor& a, void* stream) {
  const std::int64_t n = a.p.elements();
  if (n == 0) return;
  auto* scalars = reinterpret_cast<Scalars*>(a.scratch + kSumPartials);
  check_cuda(cudaMemsetAsync(scalars, 0, sizeof(Scalars), stream_of(stream)), "adafactor");
  const Rule rule = {static_cast<double>(n), a.eps_scale, a.clip_threshold,
                     a.weight_decay,         a.rate,      a.scale_parameter};
  with_activation(a.p.dtype, [&](auto p) {
    with_activation(a.g.dtype, [&](auto g) {
      using P = typename decltype(p)::type;
      using G = typename decltype(g)::type;
      if (a.p.rank >= 2) {
        run_matrices<P, G>(a, rule, scalars, stream);
      } else {
        run_vector<P, G>(a, rule, scalars, stream);
      }
    });
  });
}

}  // namespace ballast::ops::cuda
