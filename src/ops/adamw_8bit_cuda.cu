#include "ops/adamw_8bit_cuda.h"
#include "ops/ordered_sum_cuda.cuh"
#include "ops/parameter_cuda.cuh"
#include "ops/rounded_math_cuda.cuh"
#include "ops/row_kernel.cuh"
#include "ops/state_tables_cuda.h"

namespace ballast::ops::cuda {
namespace {

constexpr int kThreads = 256;
static_assert(kStateBlock == 32 * 8, "a warp holds one block of states, eight to a thread");

// Calls, so that what hardly happens takes no room among the instructions of what does.
__device__ __attribute__((noinline)) float rare_quotient(float a, float b) {
  return __fdiv_rn(a, b);
}
__device__ __attribute__((noinline)) float rare_step(float m, float v, float eps) {
  return __fdiv_rn(m, add(__fsqrt_rn(v), eps));
}

// The code of x in [-1, 1], in the third byte: one look at the table and one sum.
template <bool kSigned>
__device__ __forceinline__ std::uint32_t code_word(const std::uint32_t* table, float x) {
  const std::uint32_t bits = __float_as_uint(fmaxf(fabsf(x), kLeastBucket));
  const std::uint32_t at = (bits >> kBucketShift) - kFirstBucket;
  if (kSigned && x < 0) return table[kStateBuckets + at] - bits;
  return table[at] + bits;
}
static_assert(kBucketShift == 16, "the third byte");
__device__ __forceinline__ std::uint32_t four_codes(const std::uint32_t (&word)[8], int k) {
  return third_bytes(word[k], word[k + 1], word[k + 2], word[k + 3]);
}

// One moment in memory: codes with the magnitudes of their blocks, or plain f32 without.
struct Moment {
  void* data;
  float* absmax;

  template <bool kWhole>
  __device__ __forceinline__ void load(const float* values, std::int64_t i, int count,
                                       float (&x)[8]) const {
    if (absmax == nullptr) {
      load_some<kWhole>(static_cast<const float*>(data) + i, count, x);
      return;
    }
    const auto* codes = static_cast<const std::uint8_t*>(data) + i;
    const float scale = absmax[i / kStateBlock];
    if constexpr (kWhole) {
      const uint2 c = *reinterpret_cast<const uint2*>(codes);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        x[k] = mul(values[(k < 4 ? c.x : c.y) >> (k % 4 * 8) & 0xffu], scale);
      }
    } else {
#pragma unroll
      for (int k = 0; k < 8; ++k) x[k] = k < count ? mul(values[codes[k]], scale) : 0.0f;
    }
  }

  // largest: the same in all threads of the warp. A quotient too small for a normal number need not
  // be exact: only its sign counts.
  template <bool kWhole, bool kSigned>
  __device__ __forceinline__ void store(const std::uint32_t* table, std::int64_t i, int count,
                                        const float (&x)[8], float largest) const {
    if (absmax == nullptr) {
      store_some<kWhole>(static_cast<float*>(data) + i, count, x);
      return;
    }
    if (i % kStateBlock == 0) absmax[i / kStateBlock] = largest;
    std::uint32_t word[8];
    if (largest >= 0x1p-70f && largest <= 0x1p70f) {
      const Divisor by(largest);
#pragma unroll
      for (int k = 0; k < 8; ++k) word[k] = code_word<kSigned>(table, by.of_unsigned_zero(x[k]));
    } else {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        word[k] = code_word<kSigned>(table, largest > 0 ? rare_quotient(x[k], largest) : 0.0f);
      }
    }
    auto* codes = static_cast<std::uint8_t*>(data) + i;
    if constexpr (kWhole) {
      *reinterpret_cast<uint2*>(codes) = make_uint2(four_codes(word, 0), four_codes(word, 4));
    } else {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        if (k < count) codes[k] = static_cast<std::uint8_t>(word[k] >> kBucketShift);
      }
    }
  }
};

struct Rates {
  float rate, decay;
};

template <class P, class G>
struct Tensor {
  P* p;
  P* shift;  // may be null
  const G* g;
  Moment m, v;
  ParameterRounding rounding;
  Rates rates;
  std::int64_t elements;
  unsigned first_block;  // of states, counted through all tensors of the launch
  bool aligned, decays;
};

// All that a launch updates. Memory gives a multiprocessor 1.4 elements per clock where all is in
// 16 and 8 bits, 80 instructions for each: what is looked at of an element is its part in the
// extremes of its thread's eight, and only eights with zeros, tiny or infinite numbers among them
// are looked at again.
template <class P, class G, ParameterRounding::Kind kKind>
struct Updates {
  Tensor<P, G> tensor[kAdamWTensors];
  const void* grad_scale;
  const Rates* stabilized;  // null: each tensor's own
  float keep_m, add_m, keep_v, add_v, eps;
  int count;

  static __device__ __forceinline__ float rounded(float x) { return to_float(from_float<P>(x)); }

  // bad: a bit for each of the eight that stays what it is.
  template <bool kWhole, bool kAllGood>
  __device__ __forceinline__ void apply(const Tensor<P, G>& t, std::int64_t i, int count,
                                        const float (&old)[8], const float (&change)[8],
                                        float decay, unsigned bad) const {
    const auto decay_of = [&](int k) { return kAllGood ? decay : bad >> k & 1 ? 1.0f : decay; };
    float now[8];
    if (t.shift != nullptr) {
      float s[8];
      load_some<kWhole>(t.shift + i, count, s);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        s[k] = rounded(cuda::add(s[k], change[k]));
        if (t.decays) s[k] = rounded(mul(s[k], decay_of(k)));
        now[k] = rounded(cuda::add(old[k], s[k]));
        s[k] = cuda::add(s[k], rounded(sub(old[k], now[k])));
      }
      store_some<kWhole>(t.p + i, count, now);
      store_some<kWhole>(t.shift + i, count, s);
    } else if constexpr (kKind != ParameterRounding::nearest) {
      float base[8], decayed[8], most = 0;
      std::uint32_t words[8];
      words_of<P>(t.rounding, i, words);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        base[k] = mul(old[k], decay_of(k));
        decayed[k] = mul(change[k], decay_of(k));
        now[k] = cuda::add(base[k], decayed[k]);
        most = larger_or_nan(most, fabsf(now[k]));
      }
      if (kWhole && kKind == ParameterRounding::stochastic && most < 0x1p127f) {
        store_stochastic(t.p + i, now, words);
      } else {
        write_parameter<kWhole>(t.rounding, t.p, i, count, base, decayed, words);
      }
    } else {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        now[k] = rounded(cuda::add(old[k], change[k]));
        if (t.decays) now[k] = mul(now[k], decay_of(k));
      }
      store_some<kWhole>(t.p + i, count, now);
    }
  }

  // All threads of a warp, for one block of states.
  template <bool kWhole>
  __device__ __forceinline__ void run(const Tensor<P, G>& t, const StateTables& tables,
                                      std::int64_t i, int count) const {
    float x[8], first[8], second[8], old[8], change[8];
    load_some<kWhole>(t.g + i, count, x);
    load_some<kWhole>(t.p + i, count, old);
    t.m.template load<kWhole>(tables.m_value, i, count, first);
    t.v.template load<kWhole>(tables.v_value, i, count, second);
    const float scale = scale_of(grad_scale);
    const Rates r = stabilized != nullptr ? *stabilized : t.rates;
    float m_most = 0, v_most = 0, m_least = kInfinity, v_least = kInfinity;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float gradient = mul(x[k], scale);
      first[k] = cuda::add(mul(first[k], keep_m), mul(gradient, add_m));
      second[k] = cuda::add(mul(second[k], keep_v), mul(mul(gradient, gradient), add_v));
      m_most = fmaxf(m_most, fabsf(first[k]));
      m_least = fminf(m_least, fabsf(first[k]));
      v_most = larger_or_nan(v_most, second[k]);
      v_least = fminf(v_least, second[k]);
    }
    unsigned bad = 0;
    if (!(v_most < 0x1p60f)) {
      m_most = v_most = m_least = 0;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float gradient = mul(x[k], scale);
        const bool good = mul(gradient, gradient) < kInfinity;
        bad |= good ? 0u : 1u << k;
        first[k] = good ? first[k] : 0.0f;
        second[k] = good ? second[k] : 0.0f;
        m_most = fmaxf(m_most, fabsf(first[k]));
        v_most = fmaxf(v_most, second[k]);
      }
    }
    const bool eps_in_range = eps >= 0x1p-40f && eps <= 0x1p39f;
    if (eps_in_range && m_least >= 0x1p-80f && m_most < 0x1p80f && v_least >= 0x1p-100f) {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const Divisor by(cuda::add(root_of_normal(second[k]), eps));
        change[k] = mul(by.of_unsigned_zero(first[k]), -r.rate);
      }
    } else {
      step_with_care(first, second, eps_in_range, r.rate, change);
    }
    if (bad == 0) {
      apply<kWhole, true>(t, i, count, old, change, r.decay, 0);
    } else {
      apply<kWhole, false>(t, i, count, old, change, r.decay, bad);
    }
    // Numbers that are not negative are ordered as their bits are.
    m_most = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(m_most)));
    v_most = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(v_most)));
    t.m.template store<kWhole, true>(tables.m_code, i, count, first, m_most);
    t.v.template store<kWhole, false>(tables.v_code, i, count, second, v_most);
  }

  // Eights with zeros or with numbers of any size.
  __device__ __forceinline__ void step_with_care(const float (&first)[8], const float (&second)[8],
                                                 bool eps_in_range, float rate,
                                                 float (&change)[8]) const {
    Magnitudes of_first, of_second;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      of_first.take(first[k]);
      of_second.take(second[k]);
    }
    if (eps_in_range && of_first.between(-80, 80) && of_second.between(-100, 60)) {
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
      change[k] = first[k] != 0.0f ? mul(change[k], -rate) : 0.0f;
    }
  }
};

// A warp takes one block of states after the other, through all tensors. Eight warps share the
// tables, which take as long to copy as ten thousand elements: blocks stay.
constexpr int kBlocksAtOnce = 3;  // on a multiprocessor
template <class Op>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    update_blocks(const __grid_constant__ Op op, const StateTables* tables, unsigned blocks) {
  __shared__ StateTables shared;
  for (int k = threadIdx.x; k < static_cast<int>(sizeof(StateTables) / 16); k += kThreads) {
    reinterpret_cast<uint4*>(&shared)[k] = reinterpret_cast<const uint4*>(tables)[k];
  }
  __syncthreads();
  const unsigned warps = gridDim.x * (kThreads / 32);
  int at = 0;
  for (unsigned b = (blockIdx.x * kThreads + threadIdx.x) / 32; b < blocks; b += warps) {
    while (at + 1 < op.count && b >= op.tensor[at + 1].first_block) ++at;
    const auto& t = op.tensor[at];
    const std::int64_t begin = std::int64_t{b - t.first_block} * kStateBlock;
    const std::int64_t i = begin + threadIdx.x % 32 * 8, left = t.elements - i;
    if (t.aligned && t.elements - begin >= kStateBlock) {  // the same for the whole warp
      op.template run<true>(t, shared, i, 8);
    } else {
      op.template run<false>(t, shared, i, left <= 0 ? 0 : left < 8 ? static_cast<int>(left) : 8);
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
      return {to_float(t.g[i]), t.v.absmax == nullptr
                                    ? static_cast<const float*>(t.v.data)[i]
                                    : static_cast<float>(static_cast<std::uint8_t*>(t.v.data)[i])};
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

// f(Type<P>, Type<G>, kind of rounding)
template <class F>
void with_update(const AdamW8bit& a, F&& f) {
  with_activation(a.p.dtype, [&](auto p) {
    with_activation(a.g.dtype, [&](auto g) {
      with_rounding(p, a.rounding, [&](auto kind) { f(p, g, kind); });
    });
  });
}

Moment moment(const View& t, const View& absmax) {
  return {t.data, t.dtype == DType::u8 ? static_cast<float*>(absmax.data) : nullptr};
}

template <class P, class G>
Tensor<P, G> tensor(const AdamW8bit& a, unsigned first_block) {
  const bool aligned = sixteen(a.p.data) && sixteen(a.shift.data) && sixteen(a.g.data) &&
                       sixteen(a.m.data) && sixteen(a.v.data) && sixteen(a.rounding.carry);
  return {static_cast<P*>(a.p.data),
          static_cast<P*>(a.shift.data),
          static_cast<const G*>(a.g.data),
          moment(a.m, a.m_absmax),
          moment(a.v, a.v_absmax),
          a.rounding,
          rates_of(a.learning_rate, a.k1, a.k2, a.weight_decay),
          a.p.elements(),
          first_block,
          aligned,
          a.decays};
}

template <class G>
const Rates* stabilized_rates(const AdamW8bit& a, void* stream) {
  double* sum = a.scratch + kSumPartials;
  auto* rates = reinterpret_cast<Rates*>(sum + 1);
  const std::int64_t n = a.p.elements();
  check_cuda(cudaMemsetAsync(sum, 0, sizeof(double), stream_of(stream)), "adamw_8bit");
  add_ordered(StabilityTerm<G>{static_cast<const G*>(a.g.data), moment(a.v, a.v_absmax),
                               a.grad_scale.data, a.floor},
              n, sum, a.scratch, stream, "adamw_8bit");
  stabilize<<<1, 1, 0, stream_of(stream)>>>(sum, static_cast<double>(n), a.learning_rate, a.k1,
                                            a.k2, a.weight_decay, rates);
  check_launch("adamw_8bit");
  return rates;
}

}  // namespace

void adamw_8bit(const AdamW8bit* tensors, int count, const StateTables* tables, void* stream) {
  const AdamW8bit& a = tensors[0];
  with_update(a, [&](auto p, auto g, auto kind) {
    using P = typename decltype(p)::type;
    using G = typename decltype(g)::type;
    Updates<P, G, decltype(kind)::value> all;
    unsigned blocks = 0;
    for (int t = 0; t < count; ++t) {
      all.tensor[t] = tensor<P, G>(tensors[t], blocks);
      blocks += blocks_for(tensors[t].p.elements(), kStateBlock);
    }
    if (blocks == 0) return;
    all.grad_scale = a.grad_scale.data;
    all.stabilized = a.stabilize ? stabilized_rates<G>(a, stream) : nullptr;
    all.keep_m = a.keep_m;
    all.add_m = a.add_m;
    all.keep_v = a.keep_v;
    all.add_v = a.add_v;
    all.eps = a.eps;
    all.count = count;
    const unsigned grid = row_blocks(blocks_for(blocks, kThreads / 32), kBlocksAtOnce);
    update_blocks<<<grid, kThreads, 0, stream_of(stream)>>>(all, tables, blocks);
  });
  check_launch("adamw_8bit");
}

}  // namespace ballast::ops::cuda
