#include "ops/kernels/parameter_cuda.cuh"
#include "ops/sgd_cuda.h"

namespace ballast::ops::cuda {
namespace {

template <class P, class S, class G>
struct Update {
  P* p;
  S* b;  // may be null
  const G* g;
  const void* grad_scale;
  float momentum, decay, rate;
  ParameterRounding rounding;

  template <bool kWhole>
  __device__ void run(std::int64_t i, int count) const {
    float old[8], step[8], before[8] = {};
    load_some<kWhole>(g + i, count, step);
    load_some<kWhole>(p + i, count, old);
    if (b != nullptr) load_some<kWhole>(b + i, count, before);
    const float scale = scale_of(grad_scale);
    std::uint32_t words[8];
    words_of<P>(rounding, i, words);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      step[k] = add(mul(step[k], scale), mul(old[k], decay));
      if (b != nullptr) step[k] = add(mul(before[k], momentum), step[k]);
    }
    if (b != nullptr) store_some<kWhole>(b + i, count, step);
#pragma unroll
    for (int k = 0; k < 8; ++k) step[k] = mul(step[k], -rate);
    write_parameter<kWhole>(rounding, p, i, count, old, step, words);
  }
};

}  // namespace

void sgd(const Sgd& a, void* stream) {
  with_activation(a.p.dtype, [&](auto p) {
    with_activation(a.b ? a.b.dtype : DType::f32, [&](auto s) {
      with_activation(a.g.dtype, [&](auto g) {
        using P = typename decltype(p)::type;
        using S = typename decltype(s)::type;
        using G = typename decltype(g)::type;
        const Update<P, S, G> op = {static_cast<P*>(a.p.data),
                                    static_cast<S*>(a.b.data),
                                    static_cast<const G*>(a.g.data),
                                    a.grad_scale.data,
                                    a.momentum,
                                    a.decay,
                                    a.rate,
                                    a.rounding};
        run_each(op, a.p.elements(),
                 sixteen(op.p) && sixteen(op.b) && sixteen(op.g) && sixteen(a.rounding.carry),
                 stream, "sgd");
      });
    });
  });
}

}  // namespace ballast::ops::cuda
