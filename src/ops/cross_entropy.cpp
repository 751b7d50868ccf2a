#include "ops/cross_entropy.h"

#include "core/simd.h"
#include "ops/cross_entropy_cuda.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/kernels/row_checks.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void cross_entropy(const CrossEntropy& a, ThreadPool& pool))
}  // namespace cpu

namespace {

void check_labels(const ConstTensorView& labels, std::int64_t classes) {
  const auto* of_row = reinterpret_cast<const std::int32_t*>(labels.data);
  for (std::int64_t r = 0; r < labels.shape[0]; ++r) {
    check(of_row[r] < classes, "cross_entropy: label {} of row {}, there are {} classes", of_row[r],
          r, classes);
  }
}

}  // namespace

void cross_entropy(const CrossEntropy& a, Stream stream) {
  check_rank_2("cross_entropy: x", a.x);
  const std::int64_t rows = a.x.shape[0], classes = a.x.shape[1];
  check_rows("cross_entropy: x", a.x, rows, classes);
  check(static_cast<bool>(a.labels), "cross_entropy: no labels");
  check_index("cross_entropy: labels", a.labels, rows);
  check_f32("cross_entropy: weight", a.weight, {1});
  check_f32("cross_entropy: losses", a.losses, {rows});
  if (a.dx) check_rows("cross_entropy: dx", a.dx, rows, classes);
  on_device(
      a.x.device,
      [&] {
        check_labels(a.labels, classes);
        BALLAST_ISA_CALL(cpu, cross_entropy, a, *stream.pool);
      },
      [&] {
        cuda::cross_entropy(
            {.x = a.x, .labels = a.labels, .weight = a.weight, .losses = a.losses, .dx = a.dx},
            stream.native);
      });
}

void cross_entropy(ProgramBuilder& pb, const CrossEntropyBuffers& c) {
  pb.emit("cross_entropy", {.reads = {c.x, c.labels, c.weight}, .writes = {c.losses, c.dx}},
          [=](const Bindings& b) {
            cross_entropy({.x = b.in(c.x),
                           .labels = b.in(c.labels),
                           .weight = b.in(c.weight),
                           .losses = b.out(c.losses),
                           .dx = b.out_if(c.dx)},
                          b.stream());
          });
}

}  // namespace ballast::ops
