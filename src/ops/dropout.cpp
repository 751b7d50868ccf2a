#include "ops/dropout.h"

#include "core/error.h"
#include "core/simd.h"
#include "ops/dropout_cuda.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void dropout(const Dropout& a, ThreadPool& pool))
}

namespace {

void check_rows(const ConstTensorView& v, const char* name) {
  check(v.dtype == DType::f32 || v.dtype == DType::bf16, "dropout: {} is {}", name, v.dtype);
  check(v.shape.rank() == 2, "dropout: {} is {}, not a matrix", name, v.shape);
  check(v.shape[1] <= 1 || v.strides[1] == 1, "dropout: {} {} has element stride {}", name, v.shape,
        v.strides[1]);
}

}  // namespace

void dropout(const Dropout& a, Stream stream) {
  check_rows(a.x, "x");
  check_rows(a.y, "y");
  check(a.x.shape == a.y.shape, "dropout: x is {}, y is {}", a.x.shape, a.y.shape);
  check(a.probability >= 0 && a.probability < 1, "dropout: the probability is {}", a.probability);
  check(a.first_row >= 0, "dropout: the first row is {}", a.first_row);
  on_device(
      a.x.device, [&] { BALLAST_ISA_CALL(cpu, dropout, a, *stream.pool); },
      [&] {
        cuda::dropout({.x = a.x,
                       .y = a.y,
                       .probability = a.probability,
                       .source = cuda::random_key(a.source),
                       .first_row = a.first_row,
                       .accumulate = a.accumulate,
                       .unit = a.unit},
                      stream.native);
      });
}

Buffer dropout(ProgramBuilder& pb, Buffer x, const DropoutOptions& options) {
  const Buffer y = pb.temp("y", pb.shape(x), pb.dtype(x));
  dropout_into(pb, x, y, options);
  return y;
}

void dropout_into(ProgramBuilder& pb, Buffer x, Buffer y, const DropoutOptions& options) {
  pb.emit("dropout", {.reads = {x, options.accumulate ? y : Buffer()}, .writes = {y}},
          [=](const Bindings& b) {
            dropout({.x = b.in(x),
                     .y = b.out(y),
                     .probability = options.probability,
                     .source = options.site.at(b.step()),
                     .first_row = options.first_row,
                     .accumulate = options.accumulate,
                     .unit = options.unit},
                    b.stream());
          });
}

}  // namespace ballast::ops
