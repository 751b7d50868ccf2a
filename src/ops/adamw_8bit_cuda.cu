#include "ops/adamw_8bit_cuda.h"
#include "ops/dynamic_map.h"
#include "ops/ordered_sum_cuda.cuh"
#include "ops/parameter_cuda.cuh"
#include "ops/rounded_math_cuda.cuh"
#include "ops/row_kernel.cuh"

namespace ballast::ops::cuda {
namespace {

constexpr int kThreads = 256;
static_assert(kStateBlock == 32 * 8, "a warp holds one block of states, eight to a thread");

// The thresholds of a decade stand on a line but for the first, so that the code of a number is
// known up to one: which of the two says the threshold between them. A search would read as many
// thresholds as a code has bits, one after the other.
struct Map {
  float value[256], threshold[256];
  float2 line[8];  // by decade: the position of |x| among the thresholds of its sign
};
struct Maps {
  Map m, v;
};

constexpr float kLeastOnLine = 1.1e-7f;  // below are zero and the first threshold

// Decade i has K values in (10^(i - 7), 10^(i - 6)), as ops/dynamic_map.h says, and K before it are
// `before`. The first threshold of a decade is off its line by less than half a step.
void draw_lines(float2 (&line)[8], bool with_signs) {
  double scale = 1e-6;
  for (int decade = 0; decade < 7; ++decade, scale *= 10) {
    const int count = 1 << (with_signs ? decade : decade + 1);
    const int before = count - (with_signs ? 1 : 2);
    line[decade] = make_float2(static_cast<float>(count / (0.9 * scale)),
                               static_cast<float>(before - count / 9.0));
  }
  line[7] = line[6];
}

template <bool kSigned>
__device__ __forceinline__ std::uint8_t code_of(const Map& map, float x) {
  constexpr int kZero = kSigned ? 127 : 0;  // the code of zero
  const float a = fmaxf(fabsf(x), kLeastOnLine);
  const float log10 = __fmul_rn(log2_estimate(fminf(a, 0.99f)), 0.30103f);
  const float2 line = map.line[whole_number(__fadd_rn(log10, 6.5f))];
  const int position = whole_number(__fmaf_rn(a, line.x, line.y));
  int code = kZero + position;
  if (kSigned && x < 0) code = kZero - 1 - min(position, kZero - 1);
  return static_cast<std::uint8_t>(code + (x >= map.threshold[code] ? 1 : 0));
}

// Calls, so that what hardly happens takes no room among the instructions of what does.
__device__ __attribute__((noinline)) float rare_quotient(float a, float b) {
  return __fdiv_rn(a, b);
}
__device__ __attribute__((noinline)) float rare_step(float m, float v, float eps) {
  return __fdiv_rn(m, add(__fsqrt_rn(v), eps));
}

// One moment in memory: codes and magnitudes, or plain f32.
struct Moment {
  std::uint8_t* codes;
  float *absmax, *plain;

  template <bool kWhole>
  __device__ void load(const Map& map, std::int64_t i, int count, float (&x)[8]) const {
    if (plain != nullptr) {
      load_some<kWhole>(plain + i, count, x);
      return;
    }
    const float scale = absmax[i / kStateBlock];
    alignas(8) std::uint8_t c[8] = {};
    if constexpr (kWhole) {
      *reinterpret_cast<uint2*>(c) = *reinterpret_cast<const uint2*>(codes + i);
    } else {
#pragma unroll
      for (int k = 0; k < 8; ++k) c[k] = k < count ? codes[i + k] : 0;
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) x[k] = kWhole || k < count ? mul(map.value[c[k]], scale) : 0.0f;
  }

  // largest: the same in all threads of the warp. A quotient too small for a normal number need not
  // be exact: only its sign counts.
  template <bool kWhole, bool kSigned>
  __device__ void store(const Map& map, std::int64_t i, int count, const float (&x)[8],
                        float largest) const {
    if (plain != nullptr) {
      store_some<kWhole>(plain + i, count, x);
      return;
    }
    if (i % kStateBlock == 0) absmax[i / kStateBlock] = largest;
    alignas(8) std::uint8_t c[8];
    if (largest >= 0x1p-70f && largest <= 0x1p70f) {
#pragma unroll
      for (int k = 0; k < 8; ++k) c[k] = code_of<kSigned>(map, quotient_in_range(x[k], largest));
    } else {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        c[k] = code_of<kSigned>(map, largest > 0 ? rare_quotient(x[k], largest) : 0.0f);
      }
    }
    if constexpr (kWhole) {
      *reinterpret_cast<uint2*>(codes + i) = *reinterpret_cast<const uint2*>(c);
    } else {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        if (k < count) codes[i + k] = c[k];
      }
    }
  }
};

Moment moment(const View& t, const View& absmax) {
  const bool codes = t.dtype == DType::u8;
  return {codes ? static_cast<std::uint8_t*>(t.data) : nullptr, static_cast<float*>(absmax.data),
          codes ? nullptr : static_cast<float*>(t.data)};
}

struct Rates {
  float rate, decay;
};

template <class P, class G, ParameterRounding::Kind kKind>
struct Update {
  P* p;
  P* shift;  // may be null
  const G* g;
  Moment m, v;
  const void* grad_scale;
  const Rates* stabilized;  // null: those here
  Rates rates;
  float keep_m, add_m, keep_v, add_v, eps;
  bool decays;
  ParameterRounding rounding;

  static __device__ __forceinline__ float rounded(float x) { return to_float(from_float<P>(x)); }

  template <bool kWhole>
  __device__ void apply(std::int64_t i, int count, const float (&old)[8], const float (&change)[8],
                        const float (&decay)[8]) const {
    float now[8];
    if (shift != nullptr) {
      float s[8];
      load_some<kWhole>(shift + i, count, s);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        s[k] = rounded(cuda::add(s[k], change[k]));
        if (decays) s[k] = rounded(mul(s[k], decay[k]));
        now[k] = rounded(cuda::add(old[k], s[k]));
        s[k] = cuda::add(s[k], rounded(sub(old[k], now[k])));
      }
      store_some<kWhole>(p + i, count, now);
      store_some<kWhole>(shift + i, count, s);
    } else if constexpr (kKind != ParameterRounding::nearest) {
      float base[8], decayed[8];
      std::uint32_t words[8];
      words_of<P>(rounding, i, words);
      Magnitudes of_now;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        base[k] = mul(old[k], decay[k]);
        decayed[k] = mul(change[k], decay[k]);
        now[k] = cuda::add(base[k], decayed[k]);
        of_now.take(now[k]);
      }
      if (kWhole && kKind == ParameterRounding::stochastic && of_now.most < power_bits(127)) {
        store_stochastic(p + i, now, words);
      } else {
        write_parameter<kWhole>(rounding, p, i, count, base, decayed, words);
      }
    } else {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        now[k] = rounded(cuda::add(old[k], change[k]));
        if (decays) now[k] = mul(now[k], decay[k]);
      }
      store_some<kWhole>(p + i, count, now);
    }
  }

  // All threads of a warp, for one block of states.
  template <bool kWhole>
  __device__ void run(const Maps& maps, std::int64_t i, int count) const {
    float x[8], first[8], second[8], old[8], change[8], decay[8];
    load_some<kWhole>(g + i, count, x);
    load_some<kWhole>(p + i, count, old);
    m.load<kWhole>(maps.m, i, count, first);
    v.load<kWhole>(maps.v, i, count, second);
    const float scale = scale_of(grad_scale);
    const Rates r = stabilized != nullptr ? *stabilized : rates;
    float m_largest = 0, v_largest = 0;
    Magnitudes of_first, of_second;
    unsigned good = 0;  // a bit for each of the eight
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float gradient = mul(x[k], scale), square = mul(gradient, gradient);
      const bool is_good = square < __int_as_float(0x7f800000);
      good |= is_good ? 1u << k : 0u;
      first[k] = is_good ? cuda::add(mul(first[k], keep_m), mul(gradient, add_m)) : 0.0f;
      second[k] = is_good ? cuda::add(mul(second[k], keep_v), mul(square, add_v)) : 0.0f;
      m_largest = fmaxf(m_largest, fabsf(first[k]));
      v_largest = fmaxf(v_largest, second[k]);
      of_first.take(first[k]);
      of_second.take(second[k]);
    }
    if (eps >= 0x1p-40f && eps <= 0x1p39f && of_first.between(-80, 80) &&
        of_second.between(-100, 60)) {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        change[k] = quotient_in_range(first[k], cuda::add(root_in_range(second[k]), eps));
      }
    } else {
#pragma unroll
      for (int k = 0; k < 8; ++k) change[k] = rare_step(first[k], second[k], eps);
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      // Where g is 0 from the first step on and eps is 0, this is 0 / 0.
      change[k] = first[k] != 0.0f ? mul(change[k], -r.rate) : 0.0f;
      decay[k] = good >> k & 1 ? r.decay : 1.0f;
    }
    apply<kWhole>(i, count, old, change, decay);
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) {
      m_largest = fmaxf(m_largest, __shfl_xor_sync(0xffffffffu, m_largest, o));
      v_largest = fmaxf(v_largest, __shfl_xor_sync(0xffffffffu, v_largest, o));
    }
    m.store<kWhole, true>(maps.m, i, count, first, m_largest);
    v.store<kWhole, false>(maps.v, i, count, second, v_largest);
  }
};

// A warp takes one block of states after the other. Eight warps share the maps, which take as long
// to copy as some thousand elements: blocks stay.
constexpr int kBlocksAtOnce = 3;  // on a multiprocessor
template <class Op>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    update_blocks(const __grid_constant__ Op op, const __grid_constant__ Maps maps, std::int64_t n,
                  bool aligned) {
  __shared__ Maps shared;
  for (int k = threadIdx.x; k < static_cast<int>(sizeof(Maps) / sizeof(float)); k += kThreads) {
    reinterpret_cast<float*>(&shared)[k] = reinterpret_cast<const float*>(&maps)[k];
  }
  __syncthreads();
  const std::int64_t blocks = (n + kStateBlock - 1) / kStateBlock;
  const std::int64_t warps = std::int64_t{gridDim.x} * (kThreads / 32);
  for (std::int64_t b = (blockIdx.x * std::int64_t{kThreads} + threadIdx.x) / 32; b < blocks;
       b += warps) {
    const std::int64_t i = b * kStateBlock + threadIdx.x % 32 * 8, left = n - i;
    if (aligned && n - b * kStateBlock >= kStateBlock) {  // the same for the whole warp
      op.template run<true>(shared, i, 8);
    } else {
      op.template run<false>(shared, i, left <= 0 ? 0 : left < 8 ? static_cast<int>(left) : 8);
    }
  }
}

// g^2 / max(v, floor), v being the raw code
template <class G>
struct StabilityTerm {
  const G* g;
  Moment v;
  const void* grad_scale;
  double floor;

  struct Item {
    float g, v;
  };
  struct Thread {
    StabilityTerm t;
    float scale;
    __device__ Item load(std::int64_t i) const {
      return {to_float(t.g[i]),
              t.v.plain != nullptr ? t.v.plain[i] : static_cast<float>(t.v.codes[i])};
    }
    __device__ double add(const Item& x, std::int64_t, double sum) const {
      const double gradient = mul(x.g, scale), code = x.v;
      return sum + gradient * gradient / (code > t.floor ? code : t.floor);
    }
    __device__ double finish(double sum) const { return sum; }
  };
  __device__ Thread begin() const { return {*this, scale_of(grad_scale)}; }
};

__host__ __device__ Rates rates_of(double rate, double k1, double k2, double weight_decay) {
  return {static_cast<float>(rate * k2 / k1), static_cast<float>(1 - rate * weight_decay)};
}

__global__ void stabilize(const double* sum, double n, double learning_rate, double k1, double k2,
                          double weight_decay, Rates* out) {
  const double rms = sqrt(*sum / n);
  *out = rates_of(rms > 1 ? learning_rate / rms : learning_rate, k1, k2, weight_decay);
}

void copy_values(float (&to)[256], const float* from) {
  for (int k = 0; k < 256; ++k) to[k] = from[k];
}

// f(Type<P>, Type<G>, kind of rounding)
template <class F>
void with_update(const AdamW8bit& a, F&& f) {
  with_activation(a.p.dtype, [&](auto p) {
    with_activation(a.g.dtype, [&](auto g) {
      with_rounding(p, a.rounding, [&](auto kind) { f(p, g, kind); });
    });
  });
}

}  // namespace

void adamw_8bit(const AdamW8bit& a, void* stream) {
  const std::int64_t n = a.p.elements();
  if (n == 0) return;
  Maps maps;
  copy_values(maps.m.value, a.m_values);
  copy_values(maps.m.threshold, a.m_thresholds);
  copy_values(maps.v.value, a.v_values);
  copy_values(maps.v.threshold, a.v_thresholds);
  draw_lines(maps.m.line, true);
  draw_lines(maps.v.line, false);
  with_update(a, [&](auto p, auto g, auto kind) {
    using P = typename decltype(p)::type;
    using G = typename decltype(g)::type;
    Update<P, G, decltype(kind)::value> op = {};
    op.p = static_cast<P*>(a.p.data);
    op.shift = static_cast<P*>(a.shift.data);
    op.g = static_cast<const G*>(a.g.data);
    op.m = moment(a.m, a.m_absmax);
    op.v = moment(a.v, a.v_absmax);
    op.grad_scale = a.grad_scale.data;
    op.rates = rates_of(a.learning_rate, a.k1, a.k2, a.weight_decay);
    op.keep_m = a.keep_m;
    op.add_m = a.add_m;
    op.keep_v = a.keep_v;
    op.add_v = a.add_v;
    op.eps = a.eps;
    op.decays = a.decays;
    op.rounding = a.rounding;
    if (a.stabilize) {
      double* sum = a.scratch + kSumPartials;
      auto* rates = reinterpret_cast<Rates*>(sum + 1);
      check_cuda(cudaMemsetAsync(sum, 0, sizeof(double), stream_of(stream)), "adamw_8bit");
      add_ordered(StabilityTerm<G>{op.g, op.v, op.grad_scale, a.floor}, n, sum, a.scratch, stream,
                  "adamw_8bit");
      stabilize<<<1, 1, 0, stream_of(stream)>>>(sum, static_cast<double>(n), a.learning_rate, a.k1,
                                                a.k2, a.weight_decay, rates);
      check_launch("adamw_8bit");
      op.stabilized = rates;
    }
    const bool aligned = sixteen(op.p) && sixteen(op.shift) && sixteen(op.g) && sixteen(a.m.data) &&
                         sixteen(a.v.data) && sixteen(a.rounding.carry);
    const unsigned blocks = row_blocks((n + kThreads * 8 - 1) / (kThreads * 8), kBlocksAtOnce);
    update_blocks<<<blocks, kThreads, 0, stream_of(stream)>>>(op, maps, n, aligned);
  });
  check_launch("adamw_8bit");
}

}  // namespace ballast::ops::cuda
