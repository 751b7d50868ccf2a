#include "ops/space_to_depth.h"

#include "core/simd.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/space_to_depth_cuda.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void space_to_depth(const SpaceToDepth& a, ThreadPool& pool))
BALLAST_PER_ISA(void depth_to_space(const DepthToSpace& a, ThreadPool& pool))
}  // namespace cpu

namespace {

void check_fold(const char* op, const ConstTensorView& wide, const ConstTensorView& folded,
                const BlockShape& b) {
  for (const ConstTensorView* v : {&wide, &folded}) {
    check(v->shape.rank() == 4 && v->contiguous() &&
              (v->dtype == DType::f32 || v->dtype == DType::bf16),
          "{}: {} {} is no dense tensor of frames", op, v->dtype, v->shape);
  }
  check(b.time >= 1 && b.space >= 1 && b.lead >= 0 && b.lead < b.time,
        "{}: blocks of {} frames, {} "
        "of them missing",
        op, b.time, b.lead);
  const Shape &w = wide.shape, &f = folded.shape;
  check(w[0] + b.lead == f[0] * b.time && w[1] == f[1] * b.space && w[2] == f[2] * b.space,
        "{}: {} does not fold to {} in blocks of {} and {}", op, w, f, b.time, b.space);
  const std::int64_t flat = w[3] * b.time * b.space * b.space;
  check(f[3] > 0 && flat % f[3] == 0, "{}: {} elements of a block to {} channels", op, flat, f[3]);
}

}  // namespace

void space_to_depth(const SpaceToDepth& a, Stream stream) {
  check_fold("space_to_depth", a.wide, a.folded, a.block);
  on_device(
      a.wide.device, [&] { BALLAST_ISA_CALL(cpu, space_to_depth, a, *stream.pool); },
      [&] {
        cuda::space_to_depth({a.wide, a.folded, a.block, a.scale, a.accumulate}, stream.native);
      });
}

void depth_to_space(const DepthToSpace& a, Stream stream) {
  check_fold("depth_to_space", a.wide, a.folded, a.block);
  on_device(
      a.wide.device, [&] { BALLAST_ISA_CALL(cpu, depth_to_space, a, *stream.pool); },
      [&] {
        cuda::depth_to_space({a.wide, a.folded, a.block, a.scale, a.accumulate}, stream.native);
      });
}

void space_to_depth_into(ProgramBuilder& pb, Buffer wide, Buffer folded,
                         const SpaceToDepthOptions& o) {
  pb.emit("space_to_depth", {.reads = {wide, o.accumulate ? folded : Buffer()}, .writes = {folded}},
          [=](const Bindings& b) {
            space_to_depth({.wide = b.in(wide),
                            .folded = b.out(folded),
                            .block = o.block,
                            .scale = o.scale,
                            .accumulate = o.accumulate},
                           b.stream());
          });
}

void depth_to_space_into(ProgramBuilder& pb, Buffer folded, Buffer wide,
                         const SpaceToDepthOptions& o) {
  pb.emit("depth_to_space", {.reads = {folded, o.accumulate ? wide : Buffer()}, .writes = {wide}},
          [=](const Bindings& b) {
            depth_to_space({.folded = b.in(folded),
                            .wide = b.out(wide),
                            .block = o.block,
                            .scale = o.scale,
                            .accumulate = o.accumulate},
                           b.stream());
          });
}

}  // namespace ballast::ops
