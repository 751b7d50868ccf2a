#include "ops/rms_norm.h"

#include "core/simd.h"
#include "ops/cuda_call.h"
#include "ops/rms_norm_cuda.h"
#include "ops/row_checks.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void rms_norm(const RmsNorm& a, ThreadPool& pool))
BALLAST_PER_ISA(void rms_norm_backward(const RmsNormBackward& a, ThreadPool& pool))
}  // namespace cpu

void rms_norm(const RmsNorm& a, Stream stream) {
  check_rank_2("rms_norm: x", a.x);
  const std::int64_t rows = a.x.shape[0], width = a.x.shape[1];
  check_rows("rms_norm: x", a.x, rows, width);
  check_rows("rms_norm: y", a.y, rows, width);
  check_parameter("rms_norm: w", a.w, width);
  check_f32("rms_norm: r", a.r, {rows});
  on_device(
      a.x.device, [&] { BALLAST_ISA_CALL(cpu, rms_norm, a, *stream.pool); },
      [&] {
        cuda::rms_norm({.x = cuda::view(a.x),
                        .w = cuda::view(a.w),
                        .y = cuda::view(a.y),
                        .r = cuda::view(a.r),
                        .eps = a.eps},
                       stream.native);
      });
}

void rms_norm_backward(const RmsNormBackward& a, Stream stream) {
  check_rank_2("rms_norm_backward: x", a.x);
  const std::int64_t rows = a.x.shape[0], width = a.x.shape[1];
  check_rows("rms_norm_backward: x", a.x, rows, width);
  check_f32("rms_norm_backward: r", a.r, {rows});
  check_parameter("rms_norm_backward: w", a.w, width);
  check_rows("rms_norm_backward: dy", a.dy, rows, width);
  check_rows("rms_norm_backward: dx", a.dx, rows, width);
  if (a.dw) check_f32("rms_norm_backward: dw", a.dw, {width});
  on_device(
      a.x.device, [&] { BALLAST_ISA_CALL(cpu, rms_norm_backward, a, *stream.pool); },
      [&] {
        cuda::rms_norm_backward({.x = cuda::view(a.x),
                                 .r = cuda::view(a.r),
                                 .w = cuda::view(a.w),
                                 .dy = cuda::view(a.dy),
                                 .dx = cuda::view(a.dx),
                                 .dw = cuda::view(a.dw)},
                                stream.native);
      });
}

RmsNormOut rms_norm(ProgramBuilder& pb, Buffer x, Buffer w, float eps) {
  const Buffer y = pb.temp("y", pb.shape(x), pb.dtype(x));          // [R, C]
  const Buffer r = pb.temp("r", {pb.shape(x).rows()}, DType::f32);  // [R]
  rms_norm_into(pb, x, w, y, r, eps);
  return {y, r};
}

void rms_norm_into(ProgramBuilder& pb, Buffer x, Buffer w, Buffer y, Buffer r, float eps) {
  pb.emit("rms_norm", {.reads = {x, w}, .writes = {y, r}}, [=](const Bindings& b) {
    rms_norm({.x = b.in(x), .w = b.in(w), .y = b.out(y), .r = b.out(r), .eps = eps}, b.stream());
  });
}

void rms_norm_backward(ProgramBuilder& pb, Buffer x, Buffer r, Buffer w, Buffer dy, Buffer dx,
                       Buffer dw) {
  pb.emit("rms_norm_backward", {.reads = {x, r, w, dy, dw}, .writes = {dx, dw}},
          [=](const Bindings& b) {
            rms_norm_backward({.x = b.in(x),
                               .r = b.in(r),
                               .w = b.in(w),
                               .dy = b.in(dy),
                               .dx = b.out(dx),
                               .dw = b.out_if(dw)},
                              b.stream());
          });
}

}  // namespace ballast::ops
