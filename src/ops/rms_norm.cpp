#include "ops/rms_norm.h"

#include "core/simd.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/kernels/ordered_sum_call.h"
#include "ops/kernels/row_checks.h"
#include "ops/rms_norm_cuda.h"
#include "ops/rope_3d.h"
#include "ops/silu.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void rms_norm(const RmsNorm& a, ThreadPool& pool))
BALLAST_PER_ISA(void rms_norm_backward(const RmsNormBackward& a, ThreadPool& pool))
}  // namespace cpu

namespace {

void check_cos_sin(const char* what, const ConstTensorView& cos_sin, std::int64_t rows,
                   std::int64_t width) {
  if (!cos_sin) return;
  check(cos_sin.shape.rank() == 3 && cos_sin.shape[0] == rows && cos_sin.shape[1] > 0 &&
            cos_sin.shape[2] == 2 && width % (2 * cos_sin.shape[1]) == 0,
        "{}: a table {} of turns for rows of {}", what, cos_sin.shape, width);
  check(cos_sin.dtype == DType::f32, "{}: the table of turns is {}", what, cos_sin.dtype);
  check(cos_sin.elements() == 0 ||
            (cos_sin.strides[2] == 1 && (cos_sin.strides[1] == 2 || cos_sin.shape[1] == 1)),
        "{}: the rows of the table of turns are not contiguous", what);
}

// [R, C] as [R, H, D].
template <class View>
View heads(const View& v, const ConstTensorView& cos_sin) {
  const std::int64_t width = 2 * cos_sin.shape[1];
  return View(v.data, v.dtype, {v.shape[0], v.shape[1] / width, width}, {v.strides[0], width, 1},
              v.device);
}

void rotate(const ConstTensorView& x, const ConstTensorView& cos_sin, const TensorView& y,
            bool inverse, Stream stream) {
  rope_3d({.x = heads(x, cos_sin), .table = cos_sin, .y = heads(y, cos_sin), .inverse = inverse},
          stream);
}

}  // namespace

void rms_norm(const RmsNorm& a, Stream stream) {
  check_rank_2("rms_norm: x", a.x);
  const std::int64_t rows = a.x.shape[0], width = a.x.shape[1];
  check_rows("rms_norm: x", a.x, rows, width);
  check_rows("rms_norm: y", a.y, rows, width);
  check_parameter("rms_norm: w", a.w, width);
  check_f32("rms_norm: r", a.r, {rows});
  check_cos_sin("rms_norm", a.cos_sin, rows, width);
  on_device(
      a.x.device,
      [&] {
        BALLAST_ISA_CALL(cpu, rms_norm, a, *stream.pool);
        if (a.cos_sin) rotate(a.y, a.cos_sin, a.y, false, stream);
        if (a.silu) silu({.x = a.y, .y = a.y}, stream);
      },
      [&] {
        cuda::RmsNorm k = {.x = a.x,
                           .w = a.w,
                           .y = a.y,
                           .r = a.r,
                           .eps = a.eps,
                           .cos_sin = a.cos_sin,
                           .silu = a.silu};
        const bool later = a.cos_sin && !cuda::rotates_in_one_kernel(k);
        k.silu = a.silu && cuda::silu_in_one_kernel(k);
        if (later) k.cos_sin = {};
        cuda::rms_norm(k, stream.native);
        if (later) rotate(a.y, a.cos_sin, a.y, false, stream);
        if (a.silu && !k.silu) silu({.x = a.y, .y = a.y}, stream);
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
  check_cos_sin("rms_norm_backward", a.cos_sin, rows, width);
  on_device(
      a.x.device,
      [&] {
        RmsNormBackward k = a;
        if (a.cos_sin) {
          rotate(a.dy, a.cos_sin, a.dx, true, stream);
          k.dy = a.dx;
        }
        BALLAST_ISA_CALL(cpu, rms_norm_backward, k, *stream.pool);
      },
      [&] {
        cuda::RmsNormBackward k = {.x = a.x,
                                   .r = a.r,
                                   .w = a.w,
                                   .dy = a.dy,
                                   .dx = a.dx,
                                   .dw = a.dw,
                                   .cos_sin = a.cos_sin,
                                   .scratch = column_scratch(a.x, a.dw, stream)};
        if (a.cos_sin && !cuda::rotates_in_one_kernel(k)) {
          rotate(a.dy, a.cos_sin, a.dx, true, stream);
          k.dy = k.dx;
          k.cos_sin = {};
        }
        cuda::rms_norm_backward(k, stream.native);
      });
}

RmsNormOut rms_norm(ProgramBuilder& pb, Buffer x, Buffer w, float eps) {
  const Buffer y = pb.temp("y", pb.shape(x), pb.dtype(x));          // [R, C]
  const Buffer r = pb.temp("r", {pb.shape(x).rows()}, DType::f32);  // [R]
  rms_norm_into(pb, x, w, y, r, eps);
  return {y, r};
}

void rms_norm_into(ProgramBuilder& pb, Buffer x, Buffer w, Buffer y, Buffer r, float eps,
                   Buffer cos_sin) {
  pb.emit("rms_norm", {.reads = {x, w, cos_sin}, .writes = {y, r}}, [=](const Bindings& b) {
    rms_norm({.x = b.in(x),
              .w = b.in(w),
              .y = b.out(y),
              .r = b.out(r),
              .eps = eps,
              .cos_sin = b.in_if(cos_sin)},
             b.stream());
  });
}

void rms_norm_silu_into(ProgramBuilder& pb, Buffer x, Buffer w, Buffer y, Buffer r, float eps) {
  pb.emit("rms_norm", {.reads = {x, w}, .writes = {y, r}}, [=](const Bindings& b) {
    rms_norm({.x = b.in(x), .w = b.in(w), .y = b.out(y), .r = b.out(r), .eps = eps, .silu = true},
             b.stream());
  });
}

void rms_norm_backward(ProgramBuilder& pb, Buffer x, Buffer r, Buffer w, Buffer dy, Buffer dx,
                       Buffer dw, Buffer cos_sin) {
  const Buffer workspace = column_workspace(pb, x, dw);
  const Access access = {
      .reads = {x, r, w, dy, dw, cos_sin}, .writes = {dx, dw}, .scratch = workspace};
  pb.emit("rms_norm_backward", access, [=](const Bindings& b) {
    rms_norm_backward({.x = b.in(x),
                       .r = b.in(r),
                       .w = b.in(w),
                       .dy = b.in(dy),
                       .dx = b.out(dx),
                       .dw = b.out_if(dw),
                       .cos_sin = b.in_if(cos_sin)},
                      stream_with(b, workspace));
  });
}

}  // namespace ballast::ops
