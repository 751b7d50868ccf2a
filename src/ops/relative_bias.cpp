#include "ops/relative_bias.h"

#include "core/error.h"
#include "core/simd.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/relative_bias_cuda.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void relative_bias(const RelativeBias& a, ThreadPool& pool))
BALLAST_PER_ISA(void relative_bias_backward(const RelativeBiasBackward& a, ThreadPool& pool))
}  // namespace cpu

namespace {

void check_shapes(const char* op, const ConstTensorView& table, const ConstTensorView& bias,
                  const RelativeBuckets& buckets) {
  const std::int64_t count = buckets.bidirectional ? 2 * buckets.side : buckets.side;
  check(table.shape.rank() == 2 && table.dtype == DType::f32 && table.contiguous() &&
            table.shape[0] >= count,
        "{}: the table is {} {}, expected f32 with {} rows", op, table.dtype, table.shape, count);
  check(bias.shape.rank() == 2 && bias.dtype == DType::f32 && bias.contiguous() &&
            bias.shape[0] == table.shape[1],
        "{}: the bias is {} {}, expected f32 with {} rows", op, bias.dtype, bias.shape,
        table.shape[1]);
}

}  // namespace

void relative_bias(const RelativeBias& a, Stream stream) {
  check_shapes("relative_bias", a.table, a.bias, a.buckets);
  on_device(
      a.table.device, [&] { BALLAST_ISA_CALL(cpu, relative_bias, a, *stream.pool); },
      [&] {
        cuda::relative_bias(
            {.table = a.table, .bias = a.bias, .buckets = a.buckets, .zero = a.zero},
            stream.native);
      });
}

void relative_bias_backward(const RelativeBiasBackward& a, Stream stream) {
  check_shapes("relative_bias_backward", a.dtable, a.dbias, a.buckets);
  on_device(
      a.dtable.device, [&] { BALLAST_ISA_CALL(cpu, relative_bias_backward, a, *stream.pool); },
      [&] {
        cuda::relative_bias_backward(
            {.table = a.dtable, .bias = a.dbias, .buckets = a.buckets, .zero = a.zero},
            stream.native);
      });
}

Buffer relative_bias(ProgramBuilder& pb, Buffer table, const RelativeBiasOptions& o) {
  const Buffer bias =
      pb.temp("relative_bias", {pb.shape(table)[1], o.queries + o.keys - 1}, DType::f32);
  pb.emit("relative_bias", {.reads = {table}, .writes = {bias}}, [=](const Bindings& b) {
    const std::int64_t first = o.grows ? b.step().step : 0;
    relative_bias({.table = b.in(table),
                   .bias = b.out(bias),
                   .buckets = o.buckets,
                   .zero = o.queries - 1 + first},
                  b.stream());
  });
  return bias;
}

void relative_bias_backward(ProgramBuilder& pb, Buffer dbias, Buffer dtable,
                            const RelativeBiasOptions& o) {
  pb.emit("relative_bias_backward", {.reads = {dbias, dtable}, .writes = {dtable}},
          [=](const Bindings& b) {
            relative_bias_backward({.dbias = b.in(dbias),
                                    .dtable = b.out(dtable),
                                    .buckets = o.buckets,
                                    .zero = o.queries - 1},
                                   b.stream());
          });
}

}  // namespace ballast::ops
