#include "ops/flow_noise_cuda.h"
#include "ops/kernels/elementwise_cuda.cuh"

namespace ballast::ops::cuda {
namespace {

struct Mix {
  const float *x0, *noise;
  const void* t;
  bool t_is_f64;
  float *x_t, *target;

  template <bool kWhole>
  __device__ void run(std::int64_t i, int count) const {
    const double at = t_is_f64 ? *static_cast<const double*>(t) : *static_cast<const float*>(t);
    const float keep = static_cast<float>(1 - at), share = static_cast<float>(at);
    float x[8], e[8], y[8];
    load_some<kWhole>(x0 + i, count, x);
    load_some<kWhole>(noise + i, count, e);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      y[k] = add(mul(x[k], keep), mul(e[k], share));
      e[k] = sub(e[k], x[k]);
    }
    store_some<kWhole>(x_t + i, count, y);
    if (target != nullptr) store_some<kWhole>(target + i, count, e);
  }
};

}  // namespace

void flow_noise(const FlowNoise& a, void* stream) {
  const Mix op = {static_cast<const float*>(a.x0.data),
                  static_cast<const float*>(a.noise.data),
                  a.t.data,
                  a.t.dtype == DType::f64,
                  static_cast<float*>(a.x_t.data),
                  static_cast<float*>(a.target.data)};
  run_each(op, a.x0.elements(),
           sixteen(op.x0) && sixteen(op.noise) && sixteen(op.x_t) && sixteen(op.target), stream,
           "flow_noise");
}

}  // namespace ballast::ops::cuda
