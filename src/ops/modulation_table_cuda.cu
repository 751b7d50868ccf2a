#include "ops/kernels/row_kernel.cuh"
#include "ops/modulation_table_cuda.h"

namespace ballast::ops::cuda {
namespace {

constexpr int kThreads = 256;

struct Size {
  std::int64_t rows, timesteps, width;  // K, T, C
  bool shared_e;
};
Size size_of(const View& table, bool shared_e) {
  return {table.shape[0], table.shape[1], table.shape[2], shared_e};
}

// All of them are small (a hundred thousand elements) and contiguous: a thread makes one element of
// the result and adds up what belongs to it in order.
template <class M>
__global__ void forward(const M* modulation, const float* e, float* m, Size s) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= s.rows * s.timesteps * s.width) return;
  const std::int64_t c = i % s.width, t = i / s.width % s.timesteps, k = i / s.width / s.timesteps;
  m[i] = to_float(modulation[k * s.width + c]) + e[(s.shared_e ? t : t * s.rows + k) * s.width + c];
}

// de[t, k, c] += dm[k, t, c]; shared: de[t, c] += dm[0, t, c] ... dm[K-1, t, c].
__global__ void backward_e(const float* dm, float* de, Size s) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t per_timestep = s.shared_e ? s.width : s.rows * s.width;
  if (i >= s.timesteps * per_timestep) return;
  const std::int64_t t = i / per_timestep, c = i % s.width;
  const std::int64_t k_begin = s.shared_e ? 0 : i % per_timestep / s.width;
  const std::int64_t k_end = s.shared_e ? s.rows : k_begin + 1;
  float sum = de[i];
  for (std::int64_t k = k_begin; k < k_end; ++k) sum += dm[(k * s.timesteps + t) * s.width + c];
  de[i] = sum;
}

// dmodulation[k, c] += dm[k, 0, c] ... dm[k, T-1, c].
__global__ void backward_modulation(const float* dm, float* dmodulation, Size s) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= s.rows * s.width) return;
  const std::int64_t k = i / s.width, c = i % s.width;
  float sum = dmodulation[i];
  for (std::int64_t t = 0; t < s.timesteps; ++t) sum += dm[(k * s.timesteps + t) * s.width + c];
  dmodulation[i] = sum;
}

}  // namespace

void modulation_table(const ModulationTable& a, void* stream) {
  const Size s = size_of(a.m, a.shared_e);
  if (a.m.elements() == 0) return;
  with_parameter(a.modulation.dtype, [&](auto tag) {
    using M = typename decltype(tag)::type;
    forward<<<blocks_for(a.m.elements(), kThreads), kThreads, 0, stream_of(stream)>>>(
        static_cast<const M*>(a.modulation.data), static_cast<const float*>(a.e.data),
        static_cast<float*>(a.m.data), s);
  });
  check_launch("modulation_table");
}

void modulation_table_backward(const ModulationTableBackward& a, void* stream) {
  const Size s = size_of(a.dm, a.shared_e);
  if (a.dm.elements() == 0) return;
  const auto* dm = static_cast<const float*>(a.dm.data);
  if (a.de) {
    backward_e<<<blocks_for(a.de.elements(), kThreads), kThreads, 0, stream_of(stream)>>>(
        dm, static_cast<float*>(a.de.data), s);
  }
  if (a.dmodulation) {
    backward_modulation<<<blocks_for(a.dmodulation.elements(), kThreads), kThreads, 0,
                          stream_of(stream)>>>(dm, static_cast<float*>(a.dmodulation.data), s);
  }
  check_launch("modulation_table_backward");
}

}  // namespace ballast::ops::cuda
