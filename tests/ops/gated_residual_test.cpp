#include "ops/gated_residual.h"

#include <gtest/gtest.h>

#include <cstring>

#include "core/to_size.h"
#include "ops/kernels/token_quantum.h"
#include "tests/ref/gated_residual.h"
#include "tests/support/recorded_program.h"
#include "tests/support/row_op.h"

namespace ballast::ops::gated_residual_test {
namespace {

using namespace support;

TEST(GatedResidualRef, BackwardMatchesFiniteDifferences) {
  const Doubles x = normal_values(12, 1), y = normal_values(12, 2), gate = normal_values(6, 3);
  const Doubles dout = normal_values(12, 4);
  const std::vector<std::int32_t> index = {1, 0, 1, 1};
  const ref::GatedResidualGrads grads = ref::gated_residual_backward(dout, y, 3, gate, index);
  const auto of_y = [&](const Doubles& v) {
    return dot(dout, ref::gated_residual(x, v, 3, gate, index));
  };
  const auto of_gate = [&](const Doubles& v) {
    return dot(dout, ref::gated_residual(x, y, 3, v, index));
  };
  expect_close(grads.dy, finite_differences(y, of_y), 1e-8, "dy");
  expect_close(grads.dgate, finite_differences(gate, of_gate), 1e-8, "dgate");
}

struct Case {
  DType x = DType::f32, y = DType::f32, out = DType::f32, gate = DType::f32;
  std::int64_t width = 96, tables = 0;  // 0: no gate
  bool indexed = false;
  SampleTensor::Layout layout = kStrided;
};

void expect_matches_reference(const Case& k) {
  ThreadPool pool(2);
  const std::int64_t rows = 9;
  SampleTensor x(k.x, {rows, k.width}, k.layout), y(k.y, {rows, k.width}, k.layout), dy = y;
  SampleTensor out(k.out, {rows, k.width}, k.layout), dout = out;
  SampleTensor gate(k.gate, {k.tables, k.width}, k.layout);
  SampleTensor dgate(DType::f32, {k.tables, k.width}, kStrided);
  x.fill_normal(1);
  y.fill_normal(2);
  gate.fill_normal(3);
  dout.fill_normal(4);
  dgate.fill_normal(5);
  Index index;
  for (std::int64_t r = 0; k.indexed && r < rows; ++r) {
    index.push_back(static_cast<std::int32_t>(r * r % k.tables));
  }
  const auto width = to_size(k.width);
  const Doubles want =
      ref::gated_residual(x.values(), y.values(), width, gate.values(), values_of(index));
  ref::GatedResidualGrads grads = ref::gated_residual_backward(dout.values(), y.values(), width,
                                                               gate.values(), values_of(index));
  for (std::int64_t i = 0; i < dgate.size(); ++i) {
    grads.dgate[to_size(i)] += dgate[i];
  }
  const ConstTensorView gate_view = k.tables == 0 ? ConstTensorView() : gate.view();
  const ConstTensorView index_or_none = k.indexed ? index_view(index) : ConstTensorView();
  gated_residual(
      {.x = x.view(), .y = y.view(), .gate = gate_view, .index = index_or_none, .out = out.view()},
      support::test_stream(pool));
  gated_residual_backward({.dout = dout.view(),
                           .gate = gate_view,
                           .index = index_or_none,
                           .dy = dy.view(),
                           .y = y.view(),
                           .dgate = k.tables == 0 ? TensorView() : dgate.view()},
                          support::test_stream(pool));
  expect_close(out, want, 1.2e-7, "out");  // a product and a sum
  expect_close(dy, grads.dy, 6e-8, "dy");  // a product
  if (k.tables > 0)
    expect_close(dgate, grads.dgate, 1e-6, "dgate");  // nine terms and what was there
}

TEST(GatedResidual, MatchesReferenceForAnyMixOfTypes) {
  for (const std::int64_t width : kWidths) {
    for (const DType x : kActivations) {
      for (const DType y : kActivations) {
        for (const DType out : kActivations) {
          expect_matches_reference({.x = x, .y = y, .out = out, .width = width});
          expect_matches_reference({.x = x, .y = y, .out = out, .width = width, .tables = 1});
          expect_matches_reference(
              {.x = x, .y = y, .out = out, .width = width, .tables = 3, .indexed = true});
        }
      }
    }
  }
}

TEST(GatedResidual, AcceptsGatesOfAllParameterTypes) {
  for (const DType gate : kParameters) expect_matches_reference({.gate = gate, .tables = 2});
}

TEST(GatedResidual, MatchesReferenceWhereEverythingIsAligned) {
  for (const std::int64_t width : {8, 1024, 1536, 5120}) {
    for (const DType x : kActivations) {
      for (const DType gate : kParameters) {
        expect_matches_reference({.x = x,
                                  .y = DType::bf16,
                                  .out = x,
                                  .gate = gate,
                                  .width = width,
                                  .tables = 3,
                                  .indexed = true,
                                  .layout = kAligned});
      }
      expect_matches_reference(
          {.x = x, .y = DType::bf16, .out = x, .width = width, .layout = kAligned});
    }
  }
}

struct Result {
  SampleTensor out, dy, dgate;
};
enum class Place { apart, over_x_and_dout, over_y };
Result run(DType dtype, int threads, const std::vector<std::int64_t>& cuts,
           Place place = Place::apart, std::int64_t width = 301) {
  const std::int64_t rows = 2 * kTokenQuantum + 37;
  ThreadPool pool(threads);
  SampleTensor x(dtype, {rows, width}), y = x, dout = x, gate(DType::f32, {2, width});
  x.fill_normal(1);
  y.fill_normal(2);
  dout.fill_normal(3);
  gate.fill_normal(4);
  Index index;
  for (std::int64_t r = 0; r < rows; ++r)
    index.push_back(r < 300 ? 0 : static_cast<std::int32_t>(r % 2));
  Result result = {place == Place::over_y ? y : x, place == Place::over_y ? y : dout,
                   SampleTensor(DType::f32, {2, width})};
  SampleTensor& read_x = place == Place::over_x_and_dout ? result.out : x;
  SampleTensor& read_dout = place == Place::over_x_and_dout ? result.dy : dout;
  SampleTensor& read_y = place == Place::over_y ? result.out : y;
  SampleTensor& read_y_again = place == Place::over_y ? result.dy : y;
  std::int64_t begin = 0;
  for (const std::int64_t n : cuts) {
    const auto part = [&](auto& t) { return t.view().rows(begin, n); };
    const ConstTensorView index_part = index_view(index).rows(begin, n);
    gated_residual({.x = part(read_x),
                    .y = part(read_y),
                    .gate = gate.view(),
                    .index = index_part,
                    .out = part(result.out)},
                   support::test_stream(pool));
    gated_residual_backward({.dout = part(read_dout),
                             .gate = gate.view(),
                             .index = index_part,
                             .dy = part(result.dy),
                             .y = part(read_y_again),
                             .dgate = result.dgate.view()},
                            support::test_stream(pool));
    begin += n;
  }
  EXPECT_EQ(begin, rows);
  return result;
}

void expect_same_bits(const Result& a, const Result& b) {
  EXPECT_EQ(a.out.bytes(), b.out.bytes());
  EXPECT_EQ(a.dy.bytes(), b.dy.bytes());
  EXPECT_EQ(a.dgate.bytes(), b.dgate.bytes());
}

TEST(GatedResidual, GivesTheSameBitsForAnyThreadCountChunkingAndInPlace) {
  const std::vector<std::int64_t> all = {2 * kTokenQuantum + 37};
  for (const DType dtype : kActivations) {
    const Result whole = run(dtype, 1, all);
    expect_same_bits(whole, run(dtype, 2, all));
    expect_same_bits(whole, run(dtype, 3, all));
    expect_same_bits(whole, run(dtype, 3, {kTokenQuantum, kTokenQuantum + 37}));
    expect_same_bits(whole, run(dtype, 2, {kTokenQuantum, kTokenQuantum, 37}));
    expect_same_bits(whole, run(dtype, 2, all, Place::over_x_and_dout));
    expect_same_bits(whole, run(dtype, 2, all, Place::over_y));
  }
  const Result aligned = run(DType::bf16, 2, all, Place::apart, 304);
  expect_same_bits(aligned, run(DType::bf16, 2, {kTokenQuantum, kTokenQuantum, 37},
                                Place::over_x_and_dout, 304));
  expect_same_bits(aligned,
                   run(DType::bf16, 2, {kTokenQuantum, kTokenQuantum + 37}, Place::over_y, 304));
}

TEST(GatedResidual, AcceptsNoRows) {
  ThreadPool pool(2);
  SampleTensor x(DType::f32, {0, 8}), gate(DType::f32, {1, 8}), dgate = gate;
  dgate.fill_normal(1);
  const SampleTensor before = dgate;
  gated_residual({.x = x.view(), .y = x.view(), .gate = gate.view(), .out = x.view()},
                 support::test_stream(pool));
  gated_residual_backward(
      {.dout = x.view(), .gate = gate.view(), .dy = x.view(), .y = x.view(), .dgate = dgate.view()},
      support::test_stream(pool));
  EXPECT_EQ(dgate.bytes(), before.bytes());
}

TEST(GatedResidual, RefusesWhatDoesNotFit) {
  ThreadPool pool(1);
  const Stream stream = support::test_stream(pool);
  SampleTensor x(DType::f32, {2, 4}), gate(DType::f32, {2, 4}), wide(DType::f32, {2, 5});
  const Index index = {0, 2};
  EXPECT_THROW(gated_residual({.x = x.view(), .y = wide.view(), .out = x.view()}, stream), Error);
  EXPECT_THROW(
      gated_residual({.x = x.view(), .y = x.view(), .gate = wide.view(), .out = x.view()}, stream),
      Error);
  EXPECT_THROW(gated_residual_backward(
                   {.dout = x.view(), .dy = x.view(), .y = x.view(), .dgate = gate.view()}, stream),
               Error);
  if (test_device() == Device::cuda) return;  // an index in GPU memory is not looked at
  EXPECT_THROW(gated_residual({.x = x.view(),
                               .y = x.view(),
                               .gate = gate.view(),
                               .index = index_view(index),
                               .out = x.view()},
                              stream),
               Error);
}

TEST(GatedResidual, IsRecordedWithItsOperands) {
  RecordedProgram p;
  SampleTensor x(DType::f32, {3, 24}), y(DType::bf16, {3, 24}), gate(DType::f32, {2, 24});
  SampleTensor dout(DType::f32, {3, 24}), dgate(DType::f32, {2, 24});
  x.fill_normal(1);
  y.fill_normal(2);
  gate.fill_normal(3);
  dout.fill_normal(4);
  const Buffer bx = p.input("x", x), by = p.input("y", y), bgate = p.input("gate", gate);
  const Buffer bdout = p.input("dout", dout), bdgate = p.input("dgate", dgate);
  const Buffer bindex = p.pb.temp("index", {3}, DType::i32);
  p.pb.emit("index", {.reads = {}, .writes = {bindex}}, [=](const Bindings& b) {
    const Index values = {1, 0, 1};
    std::memcpy(b.out(bindex).data, values.data(), sizeof(std::int32_t) * values.size());
  });
  const Buffer bdy = p.pb.temp("dy", {3, 24}, DType::bf16);
  gated_residual(p.pb, bx, by, {.table = bgate, .index = bindex}, bx);
  gated_residual_backward(p.pb, bdout, {.table = bgate, .index = bindex}, bdy, by, bdgate);
  EXPECT_EQ(p.instruction(1).reads, (std::vector{bx, by, bgate, bindex}));
  EXPECT_EQ(p.instruction(1).writes, (std::vector{bx}));
  EXPECT_EQ(p.instruction(2).reads, (std::vector{bdout, bgate, bindex, by, bdgate}));
  EXPECT_EQ(p.results(2), (std::vector{bdy, bdgate}));
  p.run();
  const ref::GatedResidualGrads want =
      ref::gated_residual_backward(dout.values(), y.values(), 24, gate.values(), {1, 0, 1});
  expect_close(p.value(bx),
               ref::gated_residual(x.values(), y.values(), 24, gate.values(), {1, 0, 1}), 1.2e-7,
               "out");
  expect_close(p.value(bdy), want.dy, 6e-8, "dy");
  expect_close(p.value(bdgate), want.dgate, 1e-6, "dgate");
  gated_residual_backward(p.pb, bdout, {}, bdy, {}, {});  // no gate: cross-attention
  EXPECT_EQ(p.instruction(3).reads, (std::vector{bdout}));
  EXPECT_EQ(p.instruction(3).writes, (std::vector{bdy}));
}

}  // namespace
}  // namespace ballast::ops::gated_residual_test
