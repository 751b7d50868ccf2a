#include "ops/elementwise_cuda.cuh"
#include "ops/ema_cuda.h"

namespace ballast::ops::cuda {
namespace {

template <class P>
struct Update {
  const P* p;
  float* shadow;
  float share;

  template <bool kWhole>
  __device__ void run(std::int64_t i, int count) const {
    float now[8], old[8];
    load_some<kWhole>(p + i, count, now);
    load_some<kWhole>(shadow + i, count, old);
#pragma unroll
    for (int k = 0; k < 8; ++k) old[k] = add(old[k], mul(sub(now[k], old[k]), share));
    store_some<kWhole>(shadow + i, count, old);
  }
};

}  // namespace

void ema(const Ema& a, void* stream) {
  with_activation(a.p.dtype, [&](auto p) {
    using P = typename decltype(p)::type;
    const Update<P> op = {static_cast<const P*>(a.p.data), static_cast<float*>(a.shadow.data),
                          a.share};
    run_each(op, a.p.elements(), sixteen(op.p) && sixteen(op.shadow), stream, "ema");
  });
}

}  // namespace ballast::ops::cuda
