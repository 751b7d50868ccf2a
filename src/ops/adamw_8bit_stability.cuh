#pragma once

// The rates of an 8-bit update, and how StableAdamW limits them by the size of what a step would
// change. Included by ops/adamw_8bit_cuda.cu only.

#include "ops/adamw_8bit_cuda.h"
#include "ops/kernels/ordered_sum_cuda.cuh"
#include "ops/kernels/parameter_cuda.cuh"
#include "ops/kernels/state_codes_cuda.cuh"

namespace ballast::ops::cuda {

struct Rates {
  float rate, decay;
};

inline Moment moment(const View& t, const View& absmax) {
  return {t.data, t.dtype == DType::u8 ? static_cast<float*>(absmax.data) : nullptr};
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

inline __host__ __device__ Rates rates_of(double rate, double k1, double k2, double weight_decay) {
  return {static_cast<float>(rate * k2 / k1), static_cast<float>(1 - rate * weight_decay)};
}

static __global__ void stabilize(const double* sum, double n, double learning_rate, double k1,
                                 double k2, double weight_decay, Rates* out) {
  const double rms = sqrt(*sum / n);
  *out = rates_of(rms > 1 ? learning_rate / rms : learning_rate, k1, k2, weight_decay);
}

// Where it leaves them: behind the sum, in the call's scratch.
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

}  // namespace ballast::ops::cuda
