#include "ops/adamw_cuda.h"
#include "ops/kernels/parameter_cuda.cuh"
#include "ops/kernels/rounded_math_cuda.cuh"

namespace ballast::ops::cuda {
namespace {

// Memory gives a multiprocessor 1.3 elements per clock, so an element may take no more than about
// ninety instructions. A thread takes eight of them, whose loads are all in flight before the
// arithmetic, and its arithmetic has no branches: eight chains that do not wait for each other. It
// is right for numbers in a wide range, which is looked at before anything is written; an eight
// with others in it goes element by element, as do tensors that are not aligned, with the same
// bits.
template <class P, class S, class G, ParameterRounding::Kind kKind>
struct Update {
  P* p;
  S *m, *v;
  const G* g;
  const void* grad_scale;
  const float* rates;  // null: those of c
  AdamWCoefficients c;
  ParameterRounding rounding;

  // Coefficients with which numbers in range stay so: size is in [2^-40, 2^40].
  bool in_range() const {
    return c.eps >= 0x1p-40f && c.eps <= 0x1p39f && c.unbias_v >= 0 && c.unbias_v <= 0x1p9f;
  }

  __device__ __forceinline__ float rate() const { return rates != nullptr ? rates[0] : c.rate; }
  __device__ __forceinline__ float decay() const { return rates != nullptr ? rates[1] : c.decay; }
  __device__ __forceinline__ float new_m(float old, float x) const {
    return add(mul(old, c.keep_m), mul(x, c.add_m));
  }
  __device__ __forceinline__ float new_v(float old, float x) const {
    return add(mul(old, c.keep_v), mul(mul(x, x), c.add_v));
  }

  __device__ __forceinline__ bool eight(std::int64_t i) const {
    float x[8], first[8], second[8], base[8], change[8], now[8], carry[8];
    load8(g + i, x);
    load8(m + i, first);
    load8(v + i, second);
    load8(p + i, base);
    if constexpr (kKind == ParameterRounding::kahan) load8(carry_at(i), carry);
    const float scale = scale_of(grad_scale), by = -rate(), keep = decay();
    Magnitudes of_first, of_second, of_now;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float gradient = mul(x[k], scale);
      first[k] = new_m(first[k], gradient);
      second[k] = new_v(second[k], gradient);
      of_first.take(first[k]);
      of_second.take(second[k]);
      const float size = add(mul(root_in_range(second[k]), c.unbias_v), c.eps);
      change[k] = mul(quotient_in_range(first[k], size), by);
      base[k] = mul(base[k], keep);
      now[k] = add(base[k], change[k]);
      of_now.take(now[k]);
    }
    if (!of_first.between(-80, 80) || !of_second.between(-100, 60) ||
        of_now.most >= power_bits(127)) {
      return false;
    }
    if constexpr (kKind == ParameterRounding::kahan) {
#pragma unroll
      for (int k = 0; k < 8; ++k) add_with_carry(base[k], change[k], now[k], carry[k]);
      store8(carry_at(i), carry);
    }
    if constexpr (kKind == ParameterRounding::stochastic) {
      std::uint32_t words[8];
      aligned_words(rounding.random, rounding.first_element + static_cast<std::uint64_t>(i), words);
      store_stochastic(p + i, now, words);
      if constexpr (std::is_same_v<S, bf16>) {
#pragma unroll
        for (int k = 0; k < 8; ++k) words[k] <<= 16;
        store_stochastic(v + i, second, words);
      } else {
        store8(v + i, second);
      }
    } else {
      store8(p + i, now);
      store8(v + i, second);
    }
    store8(m + i, first);
    return true;
  }

  __device__ __forceinline__ void one(std::int64_t i) const {
    const float gradient = mul(to_float(g[i]), scale_of(grad_scale));
    const float first = new_m(to_float(m[i]), gradient);
    const float second = new_v(to_float(v[i]), gradient);
    const float size = add(mul(__fsqrt_rn(second), c.unbias_v), c.eps);
    const float change = mul(__fdiv_rn(first, size), -rate());
    const float base = mul(to_float(p[i]), decay());
    float now = add(base, change);
    std::uint32_t word = 0;
    if constexpr (kKind == ParameterRounding::kahan) {
      float carry = to_float(*carry_at(i));
      add_with_carry(base, change, now, carry);
      *carry_at(i) = from_float<bf16>(carry);
    }
    if constexpr (kKind == ParameterRounding::stochastic) {
      word = random_word(rounding.random, rounding.first_element + static_cast<std::uint64_t>(i));
      store_code(p + i, stochastic_bf16(now, word));
    } else {
      p[i] = from_float<P>(now);
    }
    m[i] = from_float<S>(first);
    if constexpr (kKind == ParameterRounding::stochastic && std::is_same_v<S, bf16>) {
      store_code(v + i, stochastic_bf16(second, word << 16));
    } else {
      v[i] = from_float<S>(second);
    }
  }

  __device__ __forceinline__ bf16* carry_at(std::int64_t i) const {
    return static_cast<bf16*>(rounding.carry) + i;
  }

  __device__ __forceinline__ void run(std::int64_t i, int count, bool aligned) const {
    if (aligned && count == 8 && eight(i)) return;
#pragma unroll 1
    for (int k = 0; k < count; ++k) one(i + k);
  }
};

// The tensors of a launch, each of which has whole blocks of threads: from first_block on.
constexpr int kThreads = 256, kEightsOfThread = 4;
constexpr std::int64_t kElementsOfBlock = 8 * kThreads * kEightsOfThread;
template <class Op>
struct Tensors {
  Op op[kAdamWTensors];
  std::int64_t elements[kAdamWTensors];
  unsigned first_block[kAdamWTensors];
  bool aligned[kAdamWTensors];
  int count;
};

template <class Op>
__global__ void __launch_bounds__(kThreads)
    update_tensors(const __grid_constant__ Tensors<Op> all) {
  int t = 0;
  while (t + 1 < all.count && blockIdx.x >= all.first_block[t + 1]) ++t;
  const Op& op = all.op[t];
  const std::int64_t n = all.elements[t];
  const std::int64_t first = (blockIdx.x - all.first_block[t]) * kElementsOfBlock;
#pragma unroll 1
  for (int k = 0; k < kEightsOfThread; ++k) {
    const std::int64_t i = first + (k * kThreads + static_cast<int>(threadIdx.x)) * 8;
    if (i >= n) return;
    op.run(i, n - i < 8 ? static_cast<int>(n - i) : 8, all.aligned[t]);
  }
}

}  // namespace

void adamw(const AdamW* tensors, int count, void* stream) {
  const AdamW& a = tensors[0];
  with_activation(a.p.dtype, [&](auto p) {
    with_activation(a.m.dtype, [&](auto s) {
      with_activation(a.g.dtype, [&](auto g) {
        with_rounding(p, a.rounding, [&](auto kind) {
          using P = typename decltype(p)::type;
          using S = typename decltype(s)::type;
          using G = typename decltype(g)::type;
          constexpr ParameterRounding::Kind kKind = decltype(kind)::value;
          using Op = Update<P, S, G, kKind>;
          Tensors<Op> all;
          unsigned blocks = 0;
          for (int t = 0; t < count; ++t) {
            const AdamW& x = tensors[t];
            const Op& op = all.op[t] = {static_cast<P*>(x.p.data),
                                        static_cast<S*>(x.m.data),
                                        static_cast<S*>(x.v.data),
                                        static_cast<const G*>(x.g.data),
                                        x.grad_scale.data,
                                        static_cast<const float*>(x.rates.data),
                                        x.coefficients,
                                        x.rounding};
            all.elements[t] = x.p.elements();
            all.first_block[t] = blocks;
            all.aligned[t] = sixteen(op.p) && sixteen(op.m) && sixteen(op.v) && sixteen(op.g) &&
                             sixteen(x.rounding.carry) && x.rounding.first_element % 4 == 0 &&
                             op.in_range();
            blocks += blocks_for(x.p.elements(), kElementsOfBlock);
          }
          all.count = count;
          if (blocks == 0) return;
          update_tensors<<<blocks, kThreads, 0, stream_of(stream)>>>(all);
          check_launch("adamw");
        });
      });
    });
  });
}

}  // namespace ballast::ops::cuda
