#include "ops/flow_noise.h"
#include "ops/kernels/elementwise.h"

namespace ballast::ops::cpu::BALLAST_ISA {

void flow_noise(const FlowNoise& a, ThreadPool& pool) {
  const double t = a.t.dtype == DType::f64 ? *reinterpret_cast<const double*>(a.t.data)
                                           : *reinterpret_cast<const float*>(a.t.data);
  const float keep = static_cast<float>(1 - t), add = static_cast<float>(t);
  const auto* x0 = reinterpret_cast<const float*>(a.x0.data);
  const auto* noise = reinterpret_cast<const float*>(a.noise.data);
  auto* x_t = reinterpret_cast<float*>(a.x_t.data);
  auto* target = reinterpret_cast<float*>(a.target.data);
  each_vector(pool, a.x0.shape.elements(), [=](std::int64_t i, std::int64_t n) {
    const f32v x = read<DType::f32>(x0 + i, n), e = read<DType::f32>(noise + i, n);
    write<DType::f32>(x_t + i, x * keep + e * add, n);
    if (target != nullptr) write<DType::f32>(target + i, e - x, n);
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
