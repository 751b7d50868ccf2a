#include "ops/global_norm.h"

#include "core/error.h"
#include "core/simd.h"
#include "ops/cuda_call.h"
#include "ops/fill.h"
#include "ops/global_norm_cuda.h"
#include "ops/linear.h"
#include "ops/ordered_sum_call.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void sum_squares(const SumSquares& a, ThreadPool& pool))
BALLAST_PER_ISA(void clip_factor(const ClipFactor& a))
BALLAST_PER_ISA(void scale_by(const ScaleBy& a, ThreadPool& pool))
BALLAST_PER_ISA(void limit_factor(const LimitFactor& a, ThreadPool& pool))
}  // namespace cpu

namespace {

bool is_scalar(const ConstTensorView& v, DType dtype) {
  return v.dtype == dtype && v.elements() == 1;
}

void check_gradient(const char* op, const ConstTensorView& x) {
  check(x.dtype == DType::f32 || x.dtype == DType::bf16, "{}: x is {}", op, x.dtype);
  check(x.contiguous(), "{}: x {} is contiguous", op, x.shape);
}

}  // namespace

void sum_squares(const SumSquares& a, Stream stream) {
  check_gradient("sum_squares", a.x);
  check(is_scalar(a.sum, DType::f64), "sum_squares: sum is {} {}", a.sum.dtype, a.sum.shape);
  on_device(
      a.x.device, [&] { BALLAST_ISA_CALL(cpu, sum_squares, a, *stream.pool); },
      [&] {
        cuda::sum_squares({.x = cuda::view(a.x),
                           .sum = cuda::view(a.sum),
                           .scratch = cuda::sum_scratch(*stream.queue)},
                          stream.native);
      });
}

void clip_factor(const ClipFactor& a, Stream stream) {
  check(is_scalar(a.sum, DType::f64), "clip_factor: sum is {} {}", a.sum.dtype, a.sum.shape);
  check(is_scalar(a.factor, DType::f32), "clip_factor: factor is {} {}", a.factor.dtype,
        a.factor.shape);
  check(!a.norm || is_scalar(a.norm, DType::f32), "clip_factor: norm is {} {}", a.norm.dtype,
        a.norm.shape);
  on_device(
      a.factor.device, [&] { BALLAST_ISA_CALL(cpu, clip_factor, a); },
      [&] {
        cuda::clip_factor({.sum = cuda::view(a.sum),
                           .max_norm = a.max_norm,
                           .factor = cuda::view(a.factor),
                           .norm = cuda::view(a.norm)},
                          stream.native);
      });
}

void scale_by(const ScaleBy& a, Stream stream) {
  check_gradient("scale_by", a.x);
  check(is_scalar(a.factor, DType::f32), "scale_by: factor is {} {}", a.factor.dtype,
        a.factor.shape);
  on_device(
      a.x.device, [&] { BALLAST_ISA_CALL(cpu, scale_by, a, *stream.pool); },
      [&] {
        cuda::scale_by({.factor = cuda::view(a.factor), .x = cuda::view(a.x)}, stream.native);
      });
}

void limit_factor(const LimitFactor& a, Stream stream) {
  for (const ConstTensorView& g : {a.ga, a.gb}) {
    check(g.dtype == DType::f32 && g.contiguous() && g.shape.rank() == 2 &&
              g.shape[0] == g.shape[1] && g.shape == a.ga.shape,
          "limit_factor: ga is {} {}, gb is {} {}", a.ga.dtype, a.ga.shape, a.gb.dtype, a.gb.shape);
  }
  check(is_scalar(a.factor, DType::f32), "limit_factor: factor is {} {}", a.factor.dtype,
        a.factor.shape);
  check(a.scale >= 0 && a.max_norm > 0, "limit_factor: scale is {}, max_norm is {}", a.scale,
        a.max_norm);
  on_device(
      a.factor.device, [&] { BALLAST_ISA_CALL(cpu, limit_factor, a, *stream.pool); },
      [&] {
        cuda::limit_factor({.ga = cuda::view(a.ga),
                            .gb = cuda::view(a.gb),
                            .scale = a.scale,
                            .max_norm = a.max_norm,
                            .factor = cuda::view(a.factor),
                            .scratch = cuda::sum_scratch(*stream.queue)},
                           stream.native);
      });
}

void sum_squares(ProgramBuilder& pb, Buffer x, Buffer sum) {
  pb.emit(
      "sum_squares", {.reads = {x, sum}, .writes = {sum}},
      [=](const Bindings& b) { sum_squares({.x = b.in(x), .sum = b.out(sum)}, b.stream()); },
      prepare_ordered_sum);
}

void clip_factor(ProgramBuilder& pb, Buffer sum, double max_norm, Buffer factor, Buffer norm) {
  pb.emit("clip_factor", {.reads = {sum}, .writes = {factor, norm}}, [=](const Bindings& b) {
    clip_factor(
        {.sum = b.in(sum), .max_norm = max_norm, .factor = b.out(factor), .norm = b.out_if(norm)},
        b.stream());
  });
}

void scale_by(ProgramBuilder& pb, Buffer factor, Buffer x) {
  pb.emit("scale_by", {.reads = {factor, x}, .writes = {x}}, [=](const Bindings& b) {
    scale_by({.factor = b.in(factor), .x = b.out(x)}, b.stream());
  });
}

void limit_factor(ProgramBuilder& pb, Buffer ga, Buffer gb, double scale, double max_norm,
                  Buffer factor) {
  pb.emit(
      "limit_factor", {.reads = {ga, gb}, .writes = {factor}},
      [=](const Bindings& b) {
        limit_factor({.ga = b.in(ga),
                      .gb = b.in(gb),
                      .scale = scale,
                      .max_norm = max_norm,
                      .factor = b.out(factor)},
                     b.stream());
      },
      prepare_ordered_sum);
}

// ||B A||^2 = tr(A^T B^T B A) = sum over i, j of (A A^T)[i, j] (B^T B)[i, j]: B A itself is as
// large as the weight that the pair adapts.
void limit_norm(ProgramBuilder& pb, Buffer a, Buffer b, double scale, double max_norm) {
  const std::int64_t rank = pb.shape(a)[0];
  const Buffer ga = pb.temp("ga", {rank, rank}, DType::f32, Role::optimizer);
  const Buffer gb = pb.temp("gb", {rank, rank}, DType::f32, Role::optimizer);
  const Buffer factor = pb.temp("factor", {1}, DType::f32, Role::optimizer);
  linear_into(pb, a, {.weight = a}, ga);
  fill(pb, gb, 0);
  linear_dw(pb, b, b, gb, {});
  limit_factor(pb, ga, gb, scale, max_norm, factor);
  scale_by(pb, factor, a);
  scale_by(pb, factor, b);
}

}  // namespace ballast::ops
