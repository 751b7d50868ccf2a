#include "ops/global_norm.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/error.h"
#include "core/simd.h"
#include "ops/fill.h"
#include "ops/global_norm_cuda.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/kernels/ordered_sum.h"
#include "ops/kernels/ordered_sum_call.h"
#include "ops/linear/linear.h"
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

void sum_squares(const SumSquares& a, Stream stream) { sum_squares({&a.x, 1}, a.sum, stream); }

void sum_squares(std::span<const ConstTensorView> x, const TensorView& sum, Stream stream) {
  if (x.empty()) return;
  check(x.size() <= kSquareTensors, "sum_squares: {} tensors in one call", x.size());
  for (const ConstTensorView& t : x) {
    check_gradient("sum_squares", t);
    check(t.dtype == x[0].dtype, "sum_squares: {} and {} in one call", t.dtype, x[0].dtype);
  }
  check(is_scalar(sum, DType::f64), "sum_squares: sum is {} {}", sum.dtype, sum.shape);
  on_device(
      sum.device,
      [&] {
        for (const ConstTensorView& t : x) {
          const SumSquares a = {.x = t, .sum = sum};
          BALLAST_ISA_CALL(cpu, sum_squares, a, *stream.pool);
        }
      },
      [&] {
        std::array<cuda::View, kSquareTensors> views;
        std::ranges::transform(x, views.begin(), [](const auto& t) { return t; });
        cuda::sum_squares({.x = views.data(),
                           .count = static_cast<int>(x.size()),
                           .sum = sum,
                           .scratch = sum_scratch(stream)},
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
        cuda::clip_factor(
            {.sum = a.sum, .max_norm = a.max_norm, .factor = a.factor, .norm = a.norm},
            stream.native);
      });
}

void scale_by(const ScaleBy& a, Stream stream) {
  check_gradient("scale_by", a.x);
  check(is_scalar(a.factor, DType::f32), "scale_by: factor is {} {}", a.factor.dtype,
        a.factor.shape);
  on_device(
      a.x.device, [&] { BALLAST_ISA_CALL(cpu, scale_by, a, *stream.pool); },
      [&] { cuda::scale_by({.factor = a.factor, .x = a.x}, stream.native); });
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
        cuda::limit_factor({.ga = a.ga,
                            .gb = a.gb,
                            .scale = a.scale,
                            .max_norm = a.max_norm,
                            .factor = a.factor,
                            .scratch = sum_scratch(stream)},
                           stream.native);
      });
}

Buffer sum_squares_scratch(ProgramBuilder& pb, Buffer sum) { return sum_workspace(pb, sum); }

void sum_squares(ProgramBuilder& pb, Buffer x, Buffer sum, Buffer scratch) {
  sum_squares(pb, {&x, 1}, sum, scratch);
}

void sum_squares(ProgramBuilder& pb, std::span<const Buffer> x, Buffer sum, Buffer scratch) {
  const auto groups = [&](Buffer b) {
    return (pb.shape(b).elements() + kSumGroup - 1) / kSumGroup;
  };
  while (!x.empty()) {
    std::size_t count = 1;
    std::int64_t all = groups(x[0]);
    while (count < x.size() && count < kSquareTensors && pb.dtype(x[count]) == pb.dtype(x[0]) &&
           all + groups(x[count]) <= cuda::kSumPartials / kGroupBlocks) {
      all += groups(x[count++]);
    }
    std::vector<Buffer> these(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(count));
    x = x.subspan(count);
    Access access = {.reads = {}, .writes = {sum}, .scratch = scratch};
    for (const Buffer b : these) access.reads.append({b});
    access.reads.append({sum});
    pb.emit("sum_squares", std::move(access),
            [these = std::move(these), sum, scratch](const Bindings& b) {
              std::array<ConstTensorView, kSquareTensors> views;
              std::ranges::transform(these, views.begin(), [&](Buffer t) { return b.in(t); });
              sum_squares({views.data(), these.size()}, b.out(sum), stream_with(b, scratch));
            });
  }
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
  const Buffer workspace = sum_workspace(pb, factor);
  pb.emit("limit_factor", {.reads = {ga, gb}, .writes = {factor}, .scratch = workspace},
          [=](const Bindings& b) {
            limit_factor({.ga = b.in(ga),
                          .gb = b.in(gb),
                          .scale = scale,
                          .max_norm = max_norm,
                          .factor = b.out(factor)},
                         stream_with(b, workspace));
          });
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
