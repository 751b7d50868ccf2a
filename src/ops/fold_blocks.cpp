#include "ops/fold_blocks.h"

#include "core/simd.h"
#include "ops/fold_blocks_cuda.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void fold_blocks(const FoldBlocks& a, ThreadPool& pool))
BALLAST_PER_ISA(void unfold_blocks(const UnfoldBlocks& a, ThreadPool& pool))
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

void fold_blocks(const FoldBlocks& a, Stream stream) {
  check_fold("fold_blocks", a.wide, a.folded, a.block);
  on_device(
      a.wide.device, [&] { BALLAST_ISA_CALL(cpu, fold_blocks, a, *stream.pool); },
      [&] {
        cuda::fold_blocks(
            {cuda::view(a.wide), cuda::view(a.folded), a.block, a.scale, a.accumulate},
            stream.native);
      });
}

void unfold_blocks(const UnfoldBlocks& a, Stream stream) {
  check_fold("unfold_blocks", a.wide, a.folded, a.block);
  on_device(
      a.wide.device, [&] { BALLAST_ISA_CALL(cpu, unfold_blocks, a, *stream.pool); },
      [&] {
        cuda::unfold_blocks(
            {cuda::view(a.wide), cuda::view(a.folded), a.block, a.scale, a.accumulate},
            stream.native);
      });
}

void fold_blocks_into(ProgramBuilder& pb, Buffer wide, Buffer folded, const FoldOptions& o) {
  pb.emit("fold_blocks", {.reads = {wide, o.accumulate ? folded : Buffer()}, .writes = {folded}},
          [=](const Bindings& b) {
            fold_blocks({.wide = b.in(wide),
                         .folded = b.out(folded),
                         .block = o.block,
                         .scale = o.scale,
                         .accumulate = o.accumulate},
                        b.stream());
          });
}

void unfold_blocks_into(ProgramBuilder& pb, Buffer folded, Buffer wide, const FoldOptions& o) {
  pb.emit("unfold_blocks", {.reads = {folded, o.accumulate ? wide : Buffer()}, .writes = {wide}},
          [=](const Bindings& b) {
            unfold_blocks({.folded = b.in(folded),
                           .wide = b.out(wide),
                           .block = o.block,
                           .scale = o.scale,
                           .accumulate = o.accumulate},
                          b.stream());
          });
}

}  // namespace ballast::ops
