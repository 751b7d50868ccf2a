#include "ops/linear/fp8_linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/thread_pool.h"
#include "core/to_size.h"
#include "tests/ref/fp8_linear.h"
#include "tests/ref/gelu.h"
#include "tests/support/allocation_hook.h"
#include "tests/support/linear_calls.h"
#include "tests/support/recorded_program.h"
#include "tests/support/test_device.h"

namespace ballast::ops::fp8_linear_test {
namespace {

using support::DeviceVector;
using support::multiplied;
using support::RecordedProgram;
using support::SampleTensor;
using support::SampleWeight;
using support::Workspace;

// Activations as quantize_rows() leaves them, in rows of K + padding codes.
struct Rows {
  Rows(const SampleTensor& x, std::int64_t padding, std::size_t start)
      : shape(x.shape()),
        stride(x.shape()[1] + padding),
        start(start),
        codes(to_size(x.shape()[0] * stride) + start),
        scales(to_size(x.shape()[0]) + 4) {
    ThreadPool pool(1);
    quantize_rows({.w = x.view(), .q = values(), .scale = scale(), .name = ""},
                  support::test_stream(pool));
    support::device_memory_is_read();
  }
  TensorView values() {
    return {codes.data() + start, DType::f8_e4m3, shape, {stride, 1}, support::test_device()};
  }
  TensorView scale() {  // off 16 bytes where the codes are
    return {reinterpret_cast<std::byte*>(scales.data() + (start == 0 ? 0 : 1)),
            DType::f32,
            {shape[0]},
            support::test_device()};
  }

  Shape shape;
  std::int64_t stride;
  std::size_t start;
  DeviceVector<std::byte> codes;
  DeviceVector<float> scales;
};

struct Operands {
  ConstTensorView x, x_scale, w, w_scale, bias;
  bool accumulate = false, gelu = false;
};
void multiply(const Operands& o, const TensorView& y, int threads) {
  ThreadPool pool(threads);
  Fp8Linear call = {.x = o.x,
                    .x_scale = o.x_scale,
                    .w = o.w,
                    .w_scale = o.w_scale,
                    .bias = o.bias,
                    .y = y,
                    .accumulate = o.accumulate,
                    .gelu = o.gelu};
  Workspace workspace(fp8_linear_workspace(fp8_linear_size(call, threads)));
  call.workspace = workspace.view();
  fp8_linear_prepare(call, support::test_stream(pool));
  fp8_linear(call, support::test_stream(pool));
  support::device_memory_is_read();
}

std::vector<float> floats(const SampleTensor& t) {
  std::vector<float> v;
  for (const double x : t.values()) v.push_back(static_cast<float>(x));
  return v;
}

std::vector<double> magnitudes(std::vector<double> v) {
  for (double& x : v) x = std::abs(x);
  return v;
}

// A sum of n terms in f32 is off by at most n roundings of the sum of magnitudes. A GPU's fp8 units
// keep about 14 bits of the sum within one instruction before it joins the f32 sum.
void expect_close(const SampleTensor& got, const std::vector<double>& want,
                  const std::vector<double>& size, std::int64_t terms) {
  const double sums =
      support::test_device() == Device::cuda ? 0x1p-12 : static_cast<double>(terms + 4) * 0x1p-24;
  for (std::int64_t i = 0; i < got.size(); ++i) {
    const auto at = to_size(i);
    const double slack =
        sums * (size[at] + 1) + 2 * support::rounding(got.dtype()) * std::abs(want[at]);
    ASSERT_NEAR(got[i], want[at], slack) << i << " of " << to_string(got.shape());
  }
}

struct Size {
  std::int64_t rows, inputs, outputs;
};
// No rows, single elements, odd; then what fp8 units take, more than one quantum and panel of it.
const Size kSizes[] = {{0, 16, 16}, {1, 1, 1},    {3, 5, 7},      {257, 33, 17},
                       {1, 16, 16}, {37, 48, 32}, {300, 144, 64}, {5, 1104, 528}};

TEST(Fp8Linear, MatchesTheReference) {
  for (const Size& s : kSizes) {
    for (const DType type : {DType::f32, DType::bf16}) {
      SampleTensor x(type, {s.rows, s.inputs});
      x.fill_normal(1);
      // Rows of very different size: a scale for all would lose the small ones.
      for (std::int64_t i = 0; i < x.size(); ++i) {
        x.set(i, x[i] * std::ldexp(1.0, static_cast<int>(i / s.inputs % 7) * 4 - 12));
      }
      const bool odd = s.inputs % 16 != 0;
      Rows rows(x, odd ? 3 : 16, odd ? 1 : 0);
      const SampleWeight w = SampleWeight(DType::f8_e4m3, s.outputs, s.inputs, odd ? 3 : 0).fill(2);
      const ref::LinearDims d = {to_size(s.rows), to_size(s.inputs), to_size(s.outputs)};
      // No scale, one, one per row, the same with a dimension behind and off 16 bytes.
      for (const int scales : {0, 1, 2, 3}) {
        const std::int64_t count = scales == 0 ? 0 : scales == 1 ? 1 : s.outputs;
        SampleTensor scale(DType::f32, scales == 3 ? Shape{count, 1} : Shape{count},
                           {.start = scales == 3 ? 1 : 0});
        scale.fill_normal(3, 0.1);
        const std::vector<double> ws = scales == 0 ? w.values() : w.scaled(floats(scale), 1);
        const DType bias_type = scales % 2 == 0 ? DType::f32 : type;
        SampleTensor bias(bias_type, {s.outputs}, {.start = scales});
        bias.fill_normal(4);
        const bool biased = scales != 2;
        const std::vector<double> added =
            biased ? multiplied(bias.values(), {type}) : std::vector<double>();
        SampleTensor y(type, {s.rows, s.outputs}, {.row_padding = odd ? 5 : 8});
        y.fill(std::vector<double>(to_size(y.size()), std::nan("")));
        multiply({.x = rows.values(),
                  .x_scale = rows.scale(),
                  .w = w.view(),
                  .w_scale = scales == 0 ? ConstTensorView() : scale.view(),
                  .bias = biased ? bias.view() : ConstTensorView()},
                 y.view(), 2);
        EXPECT_TRUE(y.padding_untouched());
        const ref::Quantized q =
            ref::quantize_rows(floats(x), s.rows, s.inputs, DType::f8_e4m3, true);
        expect_close(y, ref::fp8_linear(d, floats(x), ws, added),
                     ref::linear(d, magnitudes(ref::dequantize(q, s.inputs)), magnitudes(ws), {}),
                     s.inputs);
      }
    }
  }
}

// What the format costs: three bits of fraction in both operands, so about 2^-4 / sqrt(3) of a
// term at most and a half of that in the mean; sums of independent terms keep the relative error.
TEST(Fp8Linear, IsOffByAFewPercentOfTheExactProduct) {
  const std::int64_t rows = 16, inputs = 512, outputs = 64;
  SampleTensor x(DType::f32, {rows, inputs}), w(DType::f32, {outputs, inputs});
  x.fill_normal(1);
  w.fill_normal(2);
  const ref::LinearDims d = {16, 512, 64};
  const std::vector<double> exact = ref::linear(d, x.values(), w.values(), {});
  const ref::Quantized q = ref::quantize_rows(floats(w), outputs, inputs, DType::f8_e4m3, true);
  const std::vector<double> got = ref::fp8_linear(d, floats(x), ref::dequantize(q, inputs), {});
  double error = 0, size = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    error += (got[i] - exact[i]) * (got[i] - exact[i]);
    size += exact[i] * exact[i];
  }
  EXPECT_LT(std::sqrt(error / size), 0.045);
  EXPECT_GT(std::sqrt(error / size), 0.02);
}

// In the product's epilogue: what stands there is added, or gelu is taken of the f32 sum.
TEST(Fp8Linear, AddsToWhatIsThereOrTakesGelu) {
  for (const std::int64_t outputs : {48, 7}) {  // by fp8 units, and plainly
    const std::int64_t rows = 33, inputs = 64;
    for (const DType type : {DType::f32, DType::bf16}) {
      SampleTensor x(type, {rows, inputs}), bias(type, {outputs}), before(type, {rows, outputs});
      x.fill_normal(1);
      bias.fill_normal(2);
      before.fill_normal(3);
      Rows q(x, 0, 0);
      const SampleWeight w = SampleWeight(DType::f8_e4m3, outputs, inputs).fill(4);
      const ref::LinearDims d = {33, 64, to_size(outputs)};
      const std::vector<double> sum = ref::fp8_linear(d, floats(x), w.values(), bias.values());
      const std::vector<double> size =
          ref::linear(d, magnitudes(x.values()), magnitudes(w.values()), {});
      for (const bool gelu : {false, true}) {
        SampleTensor y = before;
        multiply({.x = q.values(),
                  .x_scale = q.scale(),
                  .w = w.view(),
                  .w_scale = {},
                  .bias = bias.view(),
                  .accumulate = !gelu,
                  .gelu = gelu},
                 y.view(), 2);
        std::vector<double> want = sum;
        for (std::size_t i = 0; i < want.size(); ++i) {
          want[i] = gelu ? ref::gelu(want[i]) : want[i] + before[static_cast<std::int64_t>(i)];
        }
        expect_close(y, want, size, inputs);
      }
    }
  }
}

TEST(Fp8Linear, ThreadsAndChunksDoNotChangeBits) {
  const std::int64_t rows = 600, inputs = 96, outputs = 48;
  for (const DType type : {DType::f32, DType::bf16}) {
    SampleTensor x(type, {rows, inputs}), bias(type, {outputs});
    x.fill_normal(1);
    bias.fill_normal(2);
    Rows q(x, 0, 0);
    const SampleWeight w = SampleWeight(DType::f8_e4m3, outputs, inputs).fill(3);
    SampleTensor whole(type, {rows, outputs}), cut(type, {rows, outputs});
    const auto part = [&](std::int64_t first, std::int64_t count, SampleTensor& y, int threads) {
      multiply({.x = ConstTensorView(q.values()).rows(first, count),
                .x_scale = ConstTensorView(q.scale()).rows(first, count),
                .w = w.view(),
                .w_scale = {},
                .bias = bias.view()},
               y.view().rows(first, count), threads);
    };
    part(0, rows, whole, 1);
    part(0, 256, cut, 3);
    part(256, 256, cut, 1);
    part(512, rows - 512, cut, 2);
    EXPECT_EQ(whole.bytes(), cut.bytes());
  }
}

TEST(Fp8Linear, ARowWithNanGivesNanAndNoOther) {
  SampleTensor x(DType::bf16, {3, 32}), y(DType::bf16, {3, 16});
  x.fill_normal(1);
  x.set(32 + 5, std::nan(""));
  x.set(64 + 5, std::numeric_limits<double>::infinity());
  Rows q(x, 0, 0);
  const SampleWeight w = SampleWeight(DType::f8_e4m3, 16, 32).fill(2);
  multiply({.x = q.values(), .x_scale = q.scale(), .w = w.view(), .w_scale = {}, .bias = {}},
           y.view(), 1);
  for (std::int64_t n = 0; n < 16; ++n) {
    EXPECT_TRUE(std::isfinite(y[n]));
    EXPECT_FALSE(std::isfinite(y[16 + n]));
    EXPECT_FALSE(std::isfinite(y[32 + n]));
  }
}

TEST(Fp8Linear, RefusesOperandsThatDoNotFit) {
  alignas(16) std::byte memory[4096] = {};
  ThreadPool pool(1);
  Fp8Linear good = {.x = {memory, DType::f8_e4m3, {2, 16}},
                    .x_scale = {memory, DType::f32, {2}},
                    .w = {memory, DType::f8_e4m3, {4, 16}},
                    .y = {memory, DType::f32, {2, 4}}};
  const auto refuses = [&](auto&& change) {
    Fp8Linear call = good;
    change(call);
    EXPECT_THROW(fp8_linear(call, {.pool = &pool}), Error);
  };
  refuses([](Fp8Linear&) {});  // there is no workspace
  refuses([&](Fp8Linear& c) { c.x = {memory, DType::f8_e5m2, {2, 16}}; });
  refuses([&](Fp8Linear& c) { c.w = {memory, DType::i8, {4, 16}}; });
  refuses([&](Fp8Linear& c) { c.w = {memory, DType::f8_e4m3, {4, 8}}; });
  refuses([&](Fp8Linear& c) { c.x_scale = {memory, DType::f32, {1}}; });
  refuses([&](Fp8Linear& c) { c.w_scale = {memory, DType::f32, {4, 2}}; });
  refuses([&](Fp8Linear& c) { c.y = {memory, DType::f16, {2, 4}}; });
}

TEST(RecordedFp8Linear, LayersShareTheQuantisedRows) {
  SampleTensor x(DType::bf16, {300, 64}), bias(DType::bf16, {32});
  x.fill_normal(1);
  bias.fill_normal(2);
  SampleTensor w1(DType::f32, {32, 64}), w2(DType::f32, {48, 64});
  w1.fill_normal(3);
  w2.fill_normal(4);
  RecordedProgram program;
  ProgramBuilder& pb = program.pb;
  const auto weight = [&](const char* name, const SampleTensor& from) {
    const Buffer codes = pb.temp(name, from.shape(), DType::f8_e4m3);
    const Buffer scale = pb.temp("scale", {from.shape()[0]}, DType::f32);
    quantize_rows(pb, program.input(name, from), codes, scale);
    return LinearWeight{.weight = codes, .bias = {}, .scale = scale};
  };
  LinearWeight first = weight("w1", w1);
  const LinearWeight second = weight("w2", w2);
  first.bias = program.input("bias", bias);
  EXPECT_TRUE(fp8_linear_takes(pb, first));
  EXPECT_FALSE(fp8_linear_takes(pb, {.weight = first.bias, .bias = {}, .scale = {}}));
  const QuantizedRows q = quantize_rows(pb, program.input("x", x));
  const Buffer y1 = pb.temp("y1", {300, 32}, DType::bf16),
               y2 = pb.temp("y2", {300, 48}, DType::bf16);
  fp8_linear_into(pb, q, first, y1);
  fp8_linear_into(pb, q, second, y2);
  EXPECT_EQ(program.instructions(), 5u);
  EXPECT_EQ(program.instruction(3).cost.work, Work::fp8_gemm);
  EXPECT_EQ(program.instruction(3).cost.flops, 2.0 * 300 * 64 * 32);
  program.run();
  const auto expect = [&](Buffer y, const SampleTensor& w, const std::vector<double>& added) {
    const ref::LinearDims d = {300, 64, to_size(w.shape()[0])};
    const ref::Quantized codes =
        ref::quantize_rows(floats(w), w.shape()[0], 64, DType::f8_e4m3, true);
    const std::vector<double> ws = ref::dequantize(codes, 64);
    expect_close(program.value(y), ref::fp8_linear(d, floats(x), ws, added),
                 ref::linear(d, magnitudes(x.values()), magnitudes(ws), {}), 64);
  };
  expect(y1, w1, bias.values());
  expect(y2, w2, {});
}

}  // namespace
}  // namespace ballast::ops::fp8_linear_test
