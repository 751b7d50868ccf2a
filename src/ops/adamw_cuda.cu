#include "ops/adamw_cuda.h"
#include "ops/parameter_cuda.cuh"

namespace ballast::ops::cuda {
namespace {

// Eight elements to a thread: at least four loads of 16 bytes are in flight before the arithmetic.
template <class P, class S, class G>
struct Update {
  P* p;
  S *m, *v;
  const G* g;
  const void* grad_scale;
  AdamWCoefficients c;
  ParameterRounding rounding;

  template <bool kWhole>
  __device__ void run(std::int64_t i, int count) const {
    float gradient[8], first[8], second[8], base[8], change[8];
    load_some<kWhole>(g + i, count, gradient);
    load_some<kWhole>(m + i, count, first);
    load_some<kWhole>(v + i, count, second);
    load_some<kWhole>(p + i, count, base);
    const float scale = scale_of(grad_scale);
    std::uint32_t words[8];
    words_of<P>(rounding, i, words);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float x = mul(gradient[k], scale);
      first[k] = add(mul(first[k], c.keep_m), mul(x, c.add_m));
      second[k] = add(mul(second[k], c.keep_v), mul(mul(x, x), c.add_v));
      const float size = add(mul(__fsqrt_rn(second[k]), c.unbias_v), c.eps);
      change[k] = mul(__fdiv_rn(first[k], size), -c.rate);
      base[k] = mul(base[k], c.decay);
    }
    write_parameter<kWhole>(rounding, p, i, count, base, change, words);
    store_some<kWhole>(m + i, count, first);
    write_state<kWhole, P>(rounding, v, i, count, second, words);
  }
};

}  // namespace

void adamw(const AdamW& a, void* stream) {
  with_activation(a.p.dtype, [&](auto p) {
    with_activation(a.m.dtype, [&](auto s) {
      with_activation(a.g.dtype, [&](auto g) {
        using P = typename decltype(p)::type;
        using S = typename decltype(s)::type;
        using G = typename decltype(g)::type;
        const Update<P, S, G> op = {static_cast<P*>(a.p.data),
                                    static_cast<S*>(a.m.data),
                                    static_cast<S*>(a.v.data),
                                    static_cast<const G*>(a.g.data),
                                    a.grad_scale.data,
                                    a.coefficients,
                                    a.rounding};
        run_each(op, a.p.elements(),
                 sixteen(op.p) && sixteen(op.m) && sixteen(op.v) && sixteen(op.g) &&
                     sixteen(a.rounding.carry),
                 stream, "adamw");
      });
    });
  });
}

}  // namespace ballast::ops::cuda
