#include "ops/gaussian_latent.h"

#include "core/error.h"
#include "core/simd.h"
#include "ops/gaussian_latent_cuda.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/kernels/ordered_sum_call.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void gaussian_latent(const GaussianLatent& a, ThreadPool& pool))
BALLAST_PER_ISA(void gaussian_latent_backward(const GaussianLatentBackward& a, ThreadPool& pool))
}  // namespace cpu

namespace {

void check_operand(const char* name, const ConstTensorView& v, std::int64_t rows,
                   std::int64_t columns) {
  check(v.dtype == DType::f32 && v.contiguous() && v.shape == Shape{rows, columns},
        "gaussian_latent: {} is {} {}, expected contiguous f32 [{}, {}]", name, v.dtype, v.shape,
        rows, columns);
}

void check_moments(const ConstTensorView& moments, const ConstTensorView& noise,
                   const ConstTensorView& sample_weight) {
  check(noise.shape.rank() == 2, "gaussian_latent: noise is {}", noise.shape);
  check_operand("noise", noise, noise.shape[0], noise.shape[1]);
  check_operand("moments", moments, noise.shape[0], 2 * noise.shape[1]);
  if (!sample_weight) return;
  check(sample_weight.dtype == DType::f32 && sample_weight.elements() == 1,
        "gaussian_latent: the sample's weight is {} {}", sample_weight.dtype, sample_weight.shape);
}

}  // namespace

void gaussian_latent(const GaussianLatent& a, Stream stream) {
  check_moments(a.moments, a.noise, a.sample_weight);
  check_operand("z", a.z, a.noise.shape[0], a.noise.shape[1]);
  check(a.kl.dtype == DType::f64 && a.kl.elements() == 1, "gaussian_latent: kl is {} {}",
        a.kl.dtype, a.kl.shape);
  on_device(
      a.z.device, [&] { BALLAST_ISA_CALL(cpu, gaussian_latent, a, *stream.pool); },
      [&] {
        cuda::gaussian_latent({.moments = a.moments,
                               .noise = a.noise,
                               .sample_weight = a.sample_weight,
                               .weight = a.weight,
                               .z = a.z,
                               .kl = a.kl,
                               .scratch = sum_scratch(stream)},
                              stream.native);
      });
}

void gaussian_latent_backward(const GaussianLatentBackward& a, Stream stream) {
  check_moments(a.moments, a.noise, a.sample_weight);
  check_operand("dz", a.dz, a.noise.shape[0], a.noise.shape[1]);
  check_operand("dmoments", a.dmoments, a.noise.shape[0], 2 * a.noise.shape[1]);
  on_device(
      a.dmoments.device, [&] { BALLAST_ISA_CALL(cpu, gaussian_latent_backward, a, *stream.pool); },
      [&] {
        cuda::gaussian_latent_backward({.moments = a.moments,
                                        .noise = a.noise,
                                        .dz = a.dz,
                                        .sample_weight = a.sample_weight,
                                        .weight = a.weight,
                                        .dmoments = a.dmoments},
                                       stream.native);
      });
}

Buffer gaussian_latent(ProgramBuilder& pb, const GaussianLatentBuffers& in, double weight,
                       Buffer kl) {
  const Buffer z = pb.temp("z", pb.shape(in.noise), DType::f32);
  const Buffer workspace = sum_workspace(pb, z);
  pb.emit("gaussian_latent",
          {.reads = {in.moments, in.noise, in.sample_weight, kl},
           .writes = {z, kl},
           .scratch = workspace},
          [=](const Bindings& b) {
            gaussian_latent({.moments = b.in(in.moments),
                             .noise = b.in(in.noise),
                             .sample_weight = b.in_if(in.sample_weight),
                             .weight = weight,
                             .z = b.out(z),
                             .kl = b.out(kl)},
                            stream_with(b, workspace));
          });
  return z;
}

Buffer gaussian_latent_backward(ProgramBuilder& pb, const GaussianLatentBuffers& in, double weight,
                                Buffer dz) {
  const Buffer dmoments = pb.temp("dmoments", pb.shape(in.moments), DType::f32);
  pb.emit("gaussian_latent_backward",
          {.reads = {in.moments, in.noise, in.sample_weight, dz}, .writes = {dmoments}},
          [=](const Bindings& b) {
            gaussian_latent_backward({.moments = b.in(in.moments),
                                      .noise = b.in(in.noise),
                                      .dz = b.in(dz),
                                      .sample_weight = b.in_if(in.sample_weight),
                                      .weight = weight,
                                      .dmoments = b.out(dmoments)},
                                     b.stream());
          });
  return dmoments;
}

}  // namespace ballast::ops
