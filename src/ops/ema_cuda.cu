#include "ops/ema_cuda.h"
#include "ops/kernels/elementwise_cuda.cuh"

namespace ballast::ops::cuda {
namespace {

__device__ __forceinline__ float moved(float old, float now, float share) {
  return add(old, mul(sub(now, old), share));
}

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
    for (int k = 0; k < 8; ++k) old[k] = moved(old[k], now[k], share);
    store_some<kWhole>(shadow + i, count, old);
  }
};

// The same by fours: what neighbours store with one instruction is whole, and all that a thread
// reads is on its way at once. Short blocks.
template <class P>
struct alignas(4 * sizeof(P)) Four {
  P e[4];
};
constexpr int kFoursEach = 4;
template <class P>
__global__ void __launch_bounds__(kEachThreads)
    update_fours(const Four<P>* p, float4* shadow, float share, std::int64_t fours) {
  const std::int64_t first = std::int64_t{blockIdx.x} * (kEachThreads * kFoursEach) + threadIdx.x;
  Four<P> now[kFoursEach];
  float4 old[kFoursEach];
#pragma unroll
  for (int k = 0; k < kFoursEach; ++k) {
    const std::int64_t i = first + k * kEachThreads;
    if (i >= fours) continue;
    now[k] = p[i];
    old[k] = shadow[i];
  }
#pragma unroll
  for (int k = 0; k < kFoursEach; ++k) {
    const std::int64_t i = first + k * kEachThreads;
    if (i >= fours) continue;
    shadow[i] = make_float4(moved(old[k].x, to_float(now[k].e[0]), share),
                            moved(old[k].y, to_float(now[k].e[1]), share),
                            moved(old[k].z, to_float(now[k].e[2]), share),
                            moved(old[k].w, to_float(now[k].e[3]), share));
  }
}

}  // namespace

void ema(const Ema& a, void* stream) {
  with_activation(a.p.dtype, [&](auto p) {
    using P = typename decltype(p)::type;
    const auto* now = static_cast<const P*>(a.p.data);
    auto* shadow = static_cast<float*>(a.shadow.data);
    const std::int64_t n = a.p.elements();
    if (n == 0) return;
    if (n % 4 != 0 || !sixteen(now) || !sixteen(shadow)) {
      run_each(Update<P>{now, shadow, a.share}, n, false, stream, "ema");
      return;
    }
    const unsigned blocks = blocks_for(n / 4, kEachThreads * kFoursEach);
    update_fours<<<blocks, kEachThreads, 0, stream_of(stream)>>>(
        reinterpret_cast<const Four<P>*>(now), reinterpret_cast<float4*>(shadow), a.share, n / 4);
    check_launch("ema");
  });
}

}  // namespace ballast::ops::cuda
