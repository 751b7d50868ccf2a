#pragma once

// Writing the parameter that an optimizer updates, as ops/kernels/parameter_simd.h does it.
// Included by .cu files only.

#include <type_traits>

#include "ops/kernels/elementwise_cuda.cuh"
#include "ops/kernels/random_cuda.cuh"
#include "ops/kernels/update_rounding_cuda.h"

namespace ballast::ops::cuda {

__device__ __forceinline__ float rounded_to_bf16(float x) { return to_float(from_float<bf16>(x)); }

template <class P>
__device__ __forceinline__ bool is_stochastic(const ParameterRounding& r) {
  return std::is_same_v<P, bf16> && r.kind == ParameterRounding::stochastic;
}

// Calls f(integral constant of the kind) for a kernel that is compiled for each; `p` is Type<P>.
template <class P, class F>
void with_rounding(Type<P>, const ParameterRounding& r, F&& f) {
  using Kind = ParameterRounding::Kind;
  if constexpr (std::is_same_v<P, bf16>) {
    if (r.kind == Kind::kahan) return f(std::integral_constant<Kind, Kind::kahan>());
    if (r.kind == Kind::stochastic) return f(std::integral_constant<Kind, Kind::stochastic>());
  }
  f(std::integral_constant<Kind, Kind::nearest>());
}

// The words of elements [i, i + 8) of the parameter, where they are needed.
template <class P>
__device__ __forceinline__ void words_of(const ParameterRounding& r, std::int64_t i,
                                         std::uint32_t (&words)[8]) {
  if (is_stochastic<P>(r)) {
    random_words(r.random, r.first_element + static_cast<std::uint64_t>(i), words);
  }
}

// Kahan: c = carry + change;  p = round(base + c);  carry = c + (base - p)
__device__ __forceinline__ void add_with_carry(float base, float change, float& p, float& carry) {
  carry = add(carry, change);
  p = rounded_to_bf16(add(base, carry));
  carry = add(carry, sub(base, p));
}

// p = base + change.
template <bool kWhole, class P>
__device__ __forceinline__ void write_parameter(const ParameterRounding& r, P* p, std::int64_t i,
                                                int count, const float (&base)[8],
                                                const float (&change)[8],
                                                const std::uint32_t (&words)[8]) {
  if constexpr (std::is_same_v<P, bf16>) {
    if (r.kind == ParameterRounding::kahan) {
      bf16* carry = static_cast<bf16*>(r.carry) + i;
      float c[8], now[8];
      load_some<kWhole>(carry, count, c);
#pragma unroll
      for (int k = 0; k < 8; ++k) add_with_carry(base[k], change[k], now[k], c[k]);
      store_some<kWhole>(p + i, count, now);
      store_some<kWhole>(carry, count, c);
      return;
    }
    if (r.kind == ParameterRounding::stochastic) {
      std::uint16_t codes[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) codes[k] = stochastic_bf16(add(base[k], change[k]), words[k]);
      store_some_codes<kWhole>(p + i, count, codes);
      return;
    }
  }
  float now[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) now[k] = add(base[k], change[k]);
  store_some<kWhole>(p + i, count, now);
}

__device__ __forceinline__ float scale_of(const void* grad_scale) {
  return grad_scale ? *static_cast<const float*>(grad_scale) : 1.0f;
}

}  // namespace ballast::ops::cuda
