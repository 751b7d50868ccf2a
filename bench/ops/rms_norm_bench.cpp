#include "bench/support/row_bench.h"
#include "ops/rms_norm.h"

namespace ballast::ops::rms_norm_bench {
namespace {

using support::BenchTensor;

void forward(benchmark::State& state, DType dtype) {
  const std::int64_t rows = 512, width = state.range(0);
  BenchTensor x(dtype, {rows, width}), y(dtype, {rows, width}), w(DType::f32, {width});
  BenchTensor r(DType::f32, {rows});
  support::measure(state, {&x, &y}, [&](Stream stream) {
    rms_norm({.x = x.view(), .w = w.view(), .y = y.view(), .r = r.view()}, stream);
  });
}

// q or k of the attention: normalised and rotated in place.
void turned(benchmark::State& state, DType dtype) {
  const std::int64_t rows = 512, width = state.range(0), head = 128;
  BenchTensor x(dtype, {rows, width}), w(DType::f32, {width}), r(DType::f32, {rows});
  BenchTensor cos_sin(DType::f32, {rows, head / 2, 2});
  support::measure(state, {&x, &x}, [&](Stream stream) {
    rms_norm(
        {.x = x.view(), .w = w.view(), .y = x.view(), .r = r.view(), .cos_sin = cos_sin.view()},
        stream);
  });
}

void backward(benchmark::State& state, DType dtype, bool frozen) {
  const std::int64_t rows = 512, width = state.range(0);
  BenchTensor x(dtype, {rows, width}), dy(dtype, {rows, width}), dx(dtype, {rows, width});
  BenchTensor w(DType::f32, {width}), dw(DType::f32, {width}), r(DType::f32, {rows});
  support::measure(state, {&x, &dy, &dx}, [&](Stream stream) {
    rms_norm_backward({.x = x.view(),
                       .r = r.view(),
                       .w = w.view(),
                       .dy = dy.view(),
                       .dx = dx.view(),
                       .dw = frozen ? TensorView() : dw.view()},
                      stream);
  });
}

BENCHMARK_CAPTURE(forward, f32, DType::f32)->Name("rms_norm/f32")->Arg(1536)->Arg(5120);
BENCHMARK_CAPTURE(forward, bf16, DType::bf16)->Name("rms_norm/bf16")->Arg(1536)->Arg(5120);
BENCHMARK_CAPTURE(turned, bf16, DType::bf16)->Name("rms_norm+rope/bf16")->Arg(5120);
BENCHMARK_CAPTURE(backward, bf16, DType::bf16, true)->Name("rms_norm_backward/bf16")->Arg(5120);
BENCHMARK_CAPTURE(backward, dw, DType::bf16, false)->Name("rms_norm_backward/bf16+dw")->Arg(5120);

}  // namespace
}  // namespace ballast::ops::rms_norm_bench
