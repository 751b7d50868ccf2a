#include "ops/linear/quantize_rows.h"

#include <cmath>
#include <string>

#include "core/convert.h"
#include "core/simd.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/linear/quantize_rows_cuda.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void quantize_rows(const QuantizeRows& a, ThreadPool& pool))
}

namespace {

void check_operands(DType w_type, const Shape& w, DType q_type, const Shape& q, DType scale_type,
                    const Shape& scale) {
  check(w.rank() == 2 && q == w, "quantize_rows: w is {}, q is {}", w, q);
  check(w_type == DType::f32 || w_type == DType::bf16 || w_type == DType::f16,
        "quantize_rows: w is {}", w_type);
  check(q_type == DType::i8 || q_type == DType::f8_e4m3 || q_type == DType::f8_e5m2,
        "quantize_rows: q is {}", q_type);
  check(scale_type == DType::f32 && scale.rank() == 1 && (scale[0] == w[0] || scale[0] == 1),
        "quantize_rows: scale is {} {} for {}", scale_type, scale, w);
}

// The first element that is no number, for the message.
void refuse_non_finite(const QuantizeRows& a) {
  for (std::int64_t n = 0; n < a.w.shape[0]; ++n) {
    for (std::int64_t k = 0; k < a.w.shape[1]; ++k) {
      const std::int64_t at = n * a.w.strides[0] + k;
      float x = 0;
      convert(a.w.data + at * static_cast<std::int64_t>(size_of(a.w.dtype)), a.w.dtype, &x,
              DType::f32, 1);
      if (!std::isfinite(x)) {
        fail(ErrorCode::input, "{} {} has {} at row {}, column {}; it cannot be quantised to {}",
             printable(a.name), a.w.shape, x, n, k, a.q.dtype);
      }
    }
  }
}

}  // namespace

void quantize_rows(const QuantizeRows& a, Stream stream) {
  check_operands(a.w.dtype, a.w.shape, a.q.dtype, a.q.shape, a.scale.dtype, a.scale.shape);
  check(a.w.shape[1] <= 1 || (a.w.strides[1] == 1 && a.q.strides[1] == 1),
        "quantize_rows: the columns of w and q must be contiguous, strides {} and {}", a.w.strides,
        a.q.strides);
  check(a.scale.contiguous(), "quantize_rows: scale has strides {}", a.scale.strides);
  on_device(
      a.q.device,
      [&] {
        BALLAST_ISA_CALL(cpu, quantize_rows, a, *stream.pool);
        if (a.name.empty()) return;
        const float* scale = a.scale.as<float>();
        for (std::int64_t i = 0; i < a.scale.shape[0]; ++i) {
          if (!std::isfinite(scale[i])) refuse_non_finite(a);
        }
      },
      [&] { cuda::quantize_rows({.w = a.w, .q = a.q, .scale = a.scale}, stream.native); });
}

void quantize_rows(ProgramBuilder& pb, Buffer w, Buffer q, Buffer scale) {
  check_operands(pb.dtype(w), pb.shape(w), pb.dtype(q), pb.shape(q), pb.dtype(scale),
                 pb.shape(scale));
  const std::string name(pb.set().spec(w).name);
  pb.emit("quantize_rows", {.reads = {w}, .writes = {q, scale}}, [=](const Bindings& b) {
    quantize_rows({.w = b.in(w), .q = b.out(q), .scale = b.out(scale), .name = name}, b.stream());
  });
}

QuantizedRows quantize_rows(ProgramBuilder& pb, Buffer x) {
  const QuantizedRows out = {.values = pb.temp("quantized", pb.shape(x), DType::f8_e4m3),
                             .scale = pb.temp("row_scale", {pb.shape(x)[0]}, DType::f32)};
  check_operands(pb.dtype(x), pb.shape(x), DType::f8_e4m3, pb.shape(out.values), DType::f32,
                 pb.shape(out.scale));
  pb.emit(
      "quantize_rows", {.reads = {x}, .writes = {out.values, out.scale}}, [=](const Bindings& b) {
        quantize_rows({.w = b.in(x), .q = b.out(out.values), .scale = b.out(out.scale), .name = ""},
                      b.stream());
      });
  return out;
}

}  // namespace ballast::ops
