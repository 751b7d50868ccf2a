#include "bench/support/tensor_memory.h"
#include "ops/gaussian_latent.h"

namespace ballast::ops {
namespace {

using bench::measure_traffic;
using bench::TensorMemory;

// Latents of 81 frames at 832 x 480.
constexpr std::int64_t kPositions = 21 * 60 * 104, kColumns = 16;

void bench_gaussian_latent(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  TensorMemory moments(DType::f32, {kPositions, 2 * kColumns}),
      noise(DType::f32, {kPositions, kColumns});
  TensorMemory z(DType::f32, {kPositions, kColumns}), kl(DType::f64, {1});
  const GaussianLatent a = {.moments = moments.view(),
                            .noise = noise.view(),
                            .weight = 1e-6,
                            .z = z.view(),
                            .kl = kl.view()};
  measure_traffic(state, moments.bytes() + noise.bytes() + z.bytes(),
                  [&] { gaussian_latent(a, {.pool = &pool}); });
}
BENCHMARK(bench_gaussian_latent)->Arg(1)->Arg(2)->UseRealTime();

void bench_gaussian_latent_backward(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  TensorMemory moments(DType::f32, {kPositions, 2 * kColumns}),
      d(DType::f32, {kPositions, 2 * kColumns});
  TensorMemory noise(DType::f32, {kPositions, kColumns}), dz(DType::f32, {kPositions, kColumns});
  const GaussianLatentBackward a = {.moments = moments.view(),
                                    .noise = noise.view(),
                                    .dz = dz.view(),
                                    .weight = 1e-6,
                                    .dmoments = d.view()};
  measure_traffic(state, moments.bytes() + noise.bytes() + dz.bytes() + d.bytes(),
                  [&] { gaussian_latent_backward(a, {.pool = &pool}); });
}
BENCHMARK(bench_gaussian_latent_backward)->Arg(1)->UseRealTime();

}  // namespace
}  // namespace ballast::ops
