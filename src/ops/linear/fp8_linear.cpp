#include "ops/linear/fp8_linear.h"

#include <algorithm>

#include "core/thread_pool.h"
#include "core/to_size.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/kernels/token_quantum.h"
#include "ops/linear/fp8_linear_cuda.h"
#include "ops/linear/fp8_linear_kernels.h"
#include "ops/linear/linear_scratch.h"
#include "plan/bindings.h"

namespace ballast::ops {
namespace {

// The CPU widens so many rows at a time: enough quanta for its threads, a fraction of a sample.
constexpr std::int64_t kWidenedRows = 8 * kTokenQuantum;

std::int64_t multiple_of(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

LinearSize widened_size(const Fp8LinearSize& s) {
  return {.rows = std::min(s.rows, kWidenedRows),
          .inputs = s.inputs,
          .outputs = s.outputs,
          .x = DType::f32,
          .y = s.y,
          .w_in_place = false,
          .threads = s.threads};
}
std::int64_t widened_bytes(const Fp8LinearSize& s) {
  return multiple_of(std::min(s.rows, kWidenedRows) * s.inputs * 4, 64);
}

cuda::Fp8LinearScratch gpu_scratch(const Fp8LinearSize& s) {
  cuda::Fp8LinearScratch p;
  if (s.rows == 0) return p;
  const auto part = [](std::int64_t floats) {
    return multiple_of(4 * floats, cuda::kWorkspaceAlignment);
  };
  p.bias = cuda::kLibraryWorkspace;
  p.w_scale = p.bias + part(s.outputs);
  p.x_scale = p.w_scale + part(s.outputs);
  p.bytes = p.x_scale + part(s.rows);
  return p;
}

bool rows_fit(const ConstTensorView& v) {
  return v.shape.rank() == 2 && (v.shape[1] <= 1 || v.strides[1] == 1) &&
         (v.shape[0] <= 1 || v.strides[0] >= v.shape[1]);
}

bool scale_fits(const Shape& scale, std::int64_t outputs) {
  return scale.elements() == 1 || (scale[0] == outputs && scale.elements() == outputs);
}

void check_operands(const Fp8Linear& a) {
  check(!(a.gelu && a.accumulate), "fp8_linear: gelu does not accumulate");
  check(rows_fit(a.x) && a.x.dtype == DType::f8_e4m3, "fp8_linear: x is {} {}", a.x.dtype,
        a.x.shape);
  const std::int64_t rows = a.x.shape[0], inputs = a.x.shape[1];
  check(rows_fit(a.w) && a.w.dtype == DType::f8_e4m3 && a.w.shape[1] == inputs,
        "fp8_linear: w is {} {}, x is {}", a.w.dtype, a.w.shape, a.x.shape);
  const std::int64_t outputs = a.w.shape[0];
  check(rows_fit(a.y) && (a.y.dtype == DType::f32 || a.y.dtype == DType::bf16) &&
            a.y.shape == Shape({rows, outputs}),
        "fp8_linear: y is {} {}, expected [{}, {}]", a.y.dtype, a.y.shape, rows, outputs);
  check(a.x_scale.dtype == DType::f32 && a.x_scale.shape == Shape({rows}) && a.x_scale.contiguous(),
        "fp8_linear: the scale of x is {} {}, x is {}", a.x_scale.dtype, a.x_scale.shape,
        a.x.shape);
  if (a.w_scale) {
    check(a.w_scale.dtype == DType::f32 && a.w_scale.contiguous() &&
              scale_fits(a.w_scale.shape, outputs),
          "fp8_linear: the scale of w is {} {}, w is {}", a.w_scale.dtype, a.w_scale.shape,
          a.w.shape);
  }
  if (a.bias) {
    check(a.bias.elements() == outputs && a.bias.contiguous(), "fp8_linear: bias is {} for {}",
          a.bias.shape, a.w.shape);
  }
}

void on_cpu(const Fp8Linear& a, const Fp8LinearSize& size, Stream stream) {
  const auto widened = to_size(widened_bytes(size));
  const TensorView rest(a.workspace.data + widened, DType::u8,
                        {static_cast<std::int64_t>(a.workspace.bytes() - widened)});
  for (std::int64_t first = 0; first < size.rows; first += kWidenedRows) {
    const std::int64_t count = std::min(kWidenedRows, size.rows - first);
    const ConstTensorView x = a.x.rows(first, count);
    const TensorView wide(a.workspace.data, DType::f32, {count, size.inputs});
    const cpu::WidenRows call = {.from = x.data,
                                 .stride = x.strides[0],
                                 .scale = a.x_scale.as<float>() + first,
                                 .to = wide.as<float>(),
                                 .rows = count,
                                 .columns = size.inputs};
    BALLAST_ISA_CALL(cpu, widen_rows, call, *stream.pool);
    linear({.x = wide,
            .w = a.w,
            .scale = a.w_scale,
            .bias = a.bias,
            .y = a.y.rows(first, count),
            .workspace = rest,
            .accumulate = a.accumulate,
            .gelu = a.gelu},
           stream);
  }
}

void run(const Fp8Linear& a, Stream stream, cuda::Doing doing) {
  check_operands(a);
  const Fp8LinearSize size = fp8_linear_size(a, stream.pool ? stream.pool->threads() : 1);
  const auto need = to_size(fp8_linear_workspace(size));
  const std::size_t have = a.workspace ? a.workspace.bytes() : 0;
  check(have >= need, "fp8_linear: the workspace has {} bytes, {} are needed", have, need);
  on_device(
      a.x.device,
      [&] {
        if (doing == cuda::Doing::run) on_cpu(a, size, stream);
      },
      [&] {
        cuda::fp8_linear({.x = a.x,
                          .x_scale = a.x_scale,
                          .w = a.w,
                          .w_scale = a.w_scale,
                          .bias = a.bias,
                          .y = a.y,
                          .scratch = gpu_scratch(size),
                          .workspace = a.workspace.data,
                          .accumulate = a.accumulate,
                          .gelu = a.gelu},
                         *stream.queue, doing);
      });
}

}  // namespace

Fp8LinearSize fp8_linear_size(const Fp8Linear& a, int threads) {
  return {.rows = a.x.shape[0],
          .inputs = a.x.shape[1],
          .outputs = a.w.shape[0],
          .y = a.y.dtype,
          .device = a.x.device,
          .threads = threads};
}

std::int64_t fp8_linear_workspace(const Fp8LinearSize& s) {
  if (s.device == Device::cuda) return gpu_scratch(s).bytes;
  return s.rows == 0 ? 0 : widened_bytes(s) + linear_workspace(widened_size(s));
}

void fp8_linear(const Fp8Linear& a, Stream stream) { run(a, stream, cuda::Doing::run); }
void fp8_linear_prepare(const Fp8Linear& a, Stream stream) { run(a, stream, cuda::Doing::prepare); }

bool fp8_linear_takes(ProgramBuilder& pb, const LinearWeight& w) {
  return pb.dtype(w.weight) == DType::f8_e4m3 &&
         (!w.scale || scale_fits(pb.shape(w.scale), pb.shape(w.weight)[0]));
}

void fp8_linear_into(ProgramBuilder& pb, const QuantizedRows& x, const LinearWeight& w, Buffer y,
                     const LinearOptions& options) {
  check(options.alpha == 1, "fp8_linear: the product is multiplied by {}", options.alpha);
  check(!options.pre, "fp8_linear: gelu has one result");
  const Fp8LinearSize size = {.rows = pb.shape(x.values)[0],
                              .inputs = pb.shape(x.values)[1],
                              .outputs = pb.shape(w.weight)[0],
                              .y = pb.dtype(y),
                              .device = pb.backend().device,
                              .threads = pb.backend().threads};
  const Buffer workspace = pb.workspace(fp8_linear_workspace(size));
  const auto call = [=](const Bindings& b) {
    return Fp8Linear{.x = b.in(x.values),
                     .x_scale = b.in(x.scale),
                     .w = b.in(w.weight),
                     .w_scale = b.in_if(w.scale),
                     .bias = b.in_if(w.bias),
                     .y = b.out(y),
                     .workspace = b.out_if(workspace),
                     .accumulate = options.accumulate,
                     .gelu = options.gelu};
  };
  const double flops = 2.0 * static_cast<double>(size.rows) * static_cast<double>(size.inputs) *
                       static_cast<double>(size.outputs);
  pb.emit(
      "fp8_linear",
      {.reads = {x.values, x.scale, w.weight, w.scale, w.bias, options.accumulate ? y : Buffer()},
       .writes = {y, workspace},
       .cost = {.work = Work::fp8_gemm, .flops = flops}},
      [=](const Bindings& b) { fp8_linear(call(b), b.stream()); },
      [=](const Bindings& b) { fp8_linear_prepare(call(b), b.stream()); });
}

}  // namespace ballast::ops
