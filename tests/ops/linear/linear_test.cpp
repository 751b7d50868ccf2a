#include "ops/linear/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <tuple>

#include "core/thread_pool.h"
#include "core/to_size.h"
#include "ops/kernels/token_quantum.h"
#include "ops/linear/linear_scratch.h"
#include "tests/ref/gelu.h"
#include "tests/ref/linear.h"
#include "tests/support/linear_calls.h"
#include "tests/support/recorded_program.h"
#include "tests/support/test_device.h"

namespace ballast::ops::linear_test {
namespace {

using support::backward;
using support::Extra;
using support::forward;
using support::kWeightTypes;
using support::multiplied;
using support::RecordedProgram;
using support::SampleTensor;
using support::SampleWeight;
using support::weight_gradient;
using support::Workspace;

ref::LinearDims dims(std::int64_t rows, std::int64_t inputs, std::int64_t outputs) {
  return {to_size(rows), to_size(inputs), to_size(outputs)};
}

std::vector<double> magnitudes(std::vector<double> v) {
  for (double& x : v) x = std::abs(x);
  return v;
}

// want = start + alpha * product + added. A sum of n terms in f32 is off by at most n roundings of
// the sum of magnitudes, in whatever order it is formed; a few more for alpha, bias and start, and
// one of the result's type. `size` is the product of magnitudes.
void expect_close(const SampleTensor& got, const std::vector<double>& want,
                  const std::vector<double>& size, std::int64_t terms) {
  for (std::int64_t i = 0; i < got.size(); ++i) {
    const auto at = to_size(i);
    const double slack = static_cast<double>(terms + 4) * 0x1p-24 * (size[at] + 8) +
                         2 * support::rounding(got.dtype()) * std::abs(want[at]);
    ASSERT_NEAR(got[i], want[at], slack) << i << " of " << to_string(got.shape());
  }
}

TEST(LinearRef, BackwardMatchesFiniteDifferences) {
  const ref::LinearDims d = {3, 4, 5};
  const auto loss = [&](const std::vector<double>& x, const std::vector<double>& w,
                        const std::vector<double>& bias, const std::vector<double>& dy) {
    double sum = 0;
    const std::vector<double> y = ref::linear(d, x, w, bias);
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
    return sum;
  };
  const auto make = [](std::int64_t n, std::uint32_t seed) {
    return SampleTensor(DType::f64, {n}).fill_normal(seed).values();
  };
  std::vector<double> x = make(12, 1), w = make(20, 2), bias = make(5, 3), dy = make(15, 4);
  const std::vector<double> dx = ref::linear_dx(d, dy, w);
  const ref::LinearGrads g = ref::linear_dw(d, x, dy);
  const auto expect_slope = [&](std::vector<double>& v, const std::vector<double>& grad) {
    for (std::size_t i = 0; i < v.size(); ++i) {
      const double old = v[i], h = 1e-4;
      v[i] = old + h;
      const double up = loss(x, w, bias, dy);
      v[i] = old - h;
      const double down = loss(x, w, bias, dy);
      v[i] = old;
      EXPECT_NEAR((up - down) / (2 * h), grad[i], 1e-9);  // the loss is linear in each operand
    }
  };
  expect_slope(x, dx);
  expect_slope(w, g.dw);
  expect_slope(bias, g.dbias);
}

struct Size {
  std::int64_t rows, inputs, outputs;
};
void PrintTo(const Size& s, std::ostream* out) {
  *out << s.rows << " x " << s.inputs << " -> " << s.outputs;
}
// No rows; single elements; odd; more than one quantum, panel and contraction block.
const Size kSizes[] = {{0, 8, 8},     {1, 1, 1},       {3, 5, 7},       {2, 1, 300},  {5, 300, 1},
                       {257, 33, 17}, {300, 131, 266}, {40, 1100, 150}, {9, 70, 1030}};

class LinearOfTypes : public testing::TestWithParam<std::tuple<Size, DType, DType>> {};

TEST_P(LinearOfTypes, MatchesReference) {
  const auto& [s, x_type, w_type] = GetParam();
  SampleTensor x(x_type, {s.rows, s.inputs}, {.row_padding = 3, .start = 1});
  x.fill_normal(1);
  const SampleWeight w = SampleWeight(w_type, s.outputs, s.inputs, 3).fill(2);
  const std::vector<double> start(to_size(s.rows * s.outputs), 0.5);
  const ref::LinearDims d = dims(s.rows, s.inputs, s.outputs);
  const std::vector<double> xs = multiplied(x.values(), {x_type});
  const std::vector<double> ws = multiplied(w.values(), {x_type});
  const std::vector<double> size = ref::linear(d, magnitudes(xs), magnitudes(ws), {});
  for (const DType bias_type : {DType::f32, DType::bf16, DType::f16}) {
    SampleTensor bias(bias_type, {s.outputs}, {.start = 1});
    bias.fill_normal(3);
    const std::vector<double> product = ref::linear(d, xs, ws, {});
    const std::vector<double> added = multiplied(bias.values(), {x_type});  // y is of x's type
    for (const bool accumulate : {false, true}) {
      SampleTensor y(x_type, {s.rows, s.outputs}, {.row_padding = 5, .start = 3});
      y.fill(start);
      if (!accumulate) y.fill(std::vector<double>(start.size(), std::nan("")));
      forward(x, w, {.bias = bias.view(), .alpha = 0.5f, .accumulate = accumulate}, y,
              {.threads = 2});
      std::vector<double> want = product;
      for (std::size_t i = 0; i < want.size(); ++i) {
        want[i] = 0.5 * want[i] + added[i % added.size()] + (accumulate ? start[i] : 0);
      }
      expect_close(y, want, size, s.inputs);
    }
  }
}

// The slope of gelu is below 1.13, so the bound of the sum is nearly that of the result; exp and
// the quotient (or a tanh of the library's) add a few roundings of the argument's size.
TEST_P(LinearOfTypes, GeluOfTheSumMatchesReference) {
  const auto& [s, x_type, w_type] = GetParam();
  SampleTensor x(x_type, {s.rows, s.inputs}, {.row_padding = 3, .start = 1});
  x.fill_normal(1);
  const SampleWeight w = SampleWeight(w_type, s.outputs, s.inputs, 3).fill(2);
  SampleTensor bias(x_type, {s.outputs}, {.start = 1});
  bias.fill_normal(3);
  const ref::LinearDims d = dims(s.rows, s.inputs, s.outputs);
  const std::vector<double> xs = multiplied(x.values(), {x_type});
  const std::vector<double> ws = multiplied(w.values(), {x_type});
  std::vector<double> size = ref::linear(d, magnitudes(xs), magnitudes(ws), {});
  for (double& v : size) v *= 2;
  for (const bool with_bias : {false, true}) {
    SampleTensor y(x_type, {s.rows, s.outputs}, {.row_padding = 5, .start = 3});
    y.fill(std::vector<double>(to_size(s.rows * s.outputs), std::nan("")));
    SampleTensor again = y, pre = y;
    Extra extra = {.bias = with_bias ? bias.view() : ConstTensorView(), .alpha = 0.25f};
    extra.gelu = true;
    forward(x, w, extra, y, {.threads = 2});
    extra.pre = &pre;
    forward(x, w, extra, again, {.threads = 2});
    std::vector<double> want = ref::linear(d, xs, ws, {});
    for (std::size_t i = 0; i < want.size(); ++i) {
      const double added = bias[static_cast<std::int64_t>(i) % s.outputs];
      want[i] = 0.25 * want[i] + (with_bias ? added : 0);
    }
    expect_close(pre, want, size, s.inputs);
    for (double& v : want) v = ref::gelu(v);
    expect_close(y, want, size, s.inputs + 8);
    EXPECT_EQ(again.bytes(), y.bytes());
  }
}

TEST_P(LinearOfTypes, InputGradientMatchesReference) {
  const auto& [s, type, w_type] = GetParam();
  SampleTensor dy(type, {s.rows, s.outputs}, {.row_padding = 1, .start = 1});
  dy.fill_normal(1);
  const SampleWeight w = SampleWeight(w_type, s.outputs, s.inputs, 1).fill(2);
  const std::vector<double> start(to_size(s.rows * s.inputs), 0.5);
  const ref::LinearDims d = dims(s.rows, s.inputs, s.outputs);
  const std::vector<double> dys = dy.values();
  const std::vector<double> ws = multiplied(w.values(), {type});
  const std::vector<double> size = ref::linear_dx(d, magnitudes(dys), magnitudes(ws));
  for (const bool accumulate : {false, true}) {
    SampleTensor dx(type, {s.rows, s.inputs}, {.row_padding = 2, .start = 1});
    dx.fill(accumulate ? start : std::vector<double>(start.size(), std::nan("")));
    backward(dy, w, {.alpha = 2, .accumulate = accumulate}, dx, {.threads = 2});
    std::vector<double> want = ref::linear_dx(d, dys, ws);
    for (double& v : want) v = 2 * v + (accumulate ? 0.5 : 0);
    std::vector<double> twice = size;
    for (double& v : twice) v *= 2;
    expect_close(dx, want, twice, s.outputs);
  }
}

TEST_P(LinearOfTypes, WeightGradientMatchesReference) {
  const auto& [s, x_type, w_type] = GetParam();
  const DType dy_type = w_type == DType::bf16 ? DType::bf16 : DType::f32;
  SampleTensor x(x_type, {s.rows, s.inputs}, {.row_padding = 3, .start = 1});
  SampleTensor dy(dy_type, {s.rows, s.outputs}, {.row_padding = 1, .start = 3});
  SampleTensor dw(DType::f32, {s.outputs, s.inputs}, {.row_padding = 2, .start = 1});
  SampleTensor dbias(DType::f32, {s.outputs}, {.start = 1});
  x.fill_normal(1), dy.fill_normal(2), dw.fill_normal(3), dbias.fill_normal(4);
  const std::vector<double> dw_start = dw.values(), dbias_start = dbias.values();
  weight_gradient(x, dy, dw, dbias, 0.5f, {.threads = 2});
  const ref::LinearDims d = dims(s.rows, s.inputs, s.outputs);
  const std::vector<double> xs = multiplied(x.values(), {x_type, dy_type});
  const std::vector<double> dys = multiplied(dy.values(), {x_type, dy_type});
  ref::LinearGrads want = ref::linear_dw(d, xs, dys);
  const ref::LinearGrads size = ref::linear_dw(d, magnitudes(xs), magnitudes(dys));
  want.dbias = ref::linear_dw(d, xs, dy.values()).dbias;  // a sum: nothing is multiplied
  for (std::size_t i = 0; i < want.dw.size(); ++i) want.dw[i] = dw_start[i] + 0.5 * want.dw[i];
  for (std::size_t i = 0; i < want.dbias.size(); ++i) {
    want.dbias[i] = dbias_start[i] + 0.5 * want.dbias[i];
  }
  expect_close(dw, want.dw, size.dw, s.rows);
  expect_close(dbias, want.dbias, size.dbias, s.rows);
}

INSTANTIATE_TEST_SUITE_P(Sizes, LinearOfTypes,
                         testing::Combine(testing::ValuesIn(kSizes),
                                          testing::Values(DType::f32, DType::bf16),
                                          testing::ValuesIn(kWeightTypes)));

// Few columns of a long contraction, as adapters have: the GPU has a kernel for them where rows
// begin at multiples of 16 bytes.
TEST(LinearOfFewColumns, MatchesReference) {
  const Size sizes[] = {
      {1, 1024, 8}, {17, 1056, 16}, {300, 1024, 24}, {33, 2080, 48}, {20, 1280, 64}};
  for (const Size& s : sizes) {
    SCOPED_TRACE(testing::PrintToString(s));
    SampleTensor x(DType::bf16, {s.rows, s.inputs}, {.row_padding = 8});
    x.fill_normal(1);
    const std::vector<double> start(to_size(s.rows * s.outputs), 0.5);
    const auto expect = [&](const std::vector<double>& product, const std::vector<double>& size,
                            bool accumulate, const SampleTensor& y) {
      std::vector<double> want = product;
      for (double& v : want) v = 0.5 * v + (accumulate ? 0.5 : 0);
      expect_close(y, want, size, s.inputs);
    };
    const SampleWeight down = SampleWeight(DType::bf16, s.outputs, s.inputs, 8).fill(2);
    const SampleWeight up = SampleWeight(DType::bf16, s.inputs, s.outputs, 8).fill(3);
    const ref::LinearDims there = dims(s.rows, s.inputs, s.outputs);
    const ref::LinearDims back = dims(s.rows, s.outputs, s.inputs);
    const std::vector<double> xs = x.values(), sizes_of_x = magnitudes(xs);
    for (const bool accumulate : {false, true}) {
      SampleTensor y(DType::bf16, {s.rows, s.outputs}, {.row_padding = 8});
      const auto before = accumulate ? start : std::vector<double>(start.size(), std::nan(""));
      y.fill(before);
      forward(x, down, {.alpha = 0.5f, .accumulate = accumulate}, y, {.threads = 2});
      expect(ref::linear(there, xs, down.values(), {}),
             ref::linear(there, sizes_of_x, magnitudes(down.values()), {}), accumulate, y);
      y.fill(before);
      backward(x, up, {.alpha = 0.5f, .accumulate = accumulate}, y, {.threads = 2});
      expect(ref::linear_dx(back, xs, up.values()),
             ref::linear_dx(back, sizes_of_x, magnitudes(up.values())), accumulate, y);
    }
  }
}

// Adapters' gradients: few columns beside many, quanta side by side on the GPU.
TEST(LinearOfFewColumns, WeightGradientMatchesReference) {
  const Size sizes[] = {
      {1, 3072, 16}, {300, 3080, 5}, {130, 24, 3072}, {257, 3072, 48}, {40, 40, 3104}};
  for (const Size& s : sizes) {
    SCOPED_TRACE(testing::PrintToString(s));
    SampleTensor x(DType::bf16, {s.rows, s.inputs}, {.row_padding = 8});
    SampleTensor dy(DType::bf16, {s.rows, s.outputs}, {.row_padding = 8});
    SampleTensor dw(DType::f32, {s.outputs, s.inputs}, {.row_padding = 3});
    SampleTensor dbias(DType::f32, {s.outputs});
    x.fill_normal(1), dy.fill_normal(2), dw.fill_normal(3), dbias.fill_normal(4);
    const std::vector<double> before = dw.values();
    weight_gradient(x, dy, dw, dbias, 0.5f, {.threads = 2});
    const ref::LinearDims d = dims(s.rows, s.inputs, s.outputs);
    ref::LinearGrads want = ref::linear_dw(d, x.values(), dy.values());
    const ref::LinearGrads size =
        ref::linear_dw(d, magnitudes(x.values()), magnitudes(dy.values()));
    for (std::size_t i = 0; i < want.dw.size(); ++i) want.dw[i] = 0.5 * want.dw[i] + before[i];
    expect_close(dw, want.dw, size.dw, s.rows);
  }
}

// Recorded: on the CPU quantum by quantum, on the GPU one product; a bf16 gradient is rounded once.
TEST(LinearAtOnce, WeightGradientIsAddedOrTakesThePlaceOfTheOld) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool overwrite : {false, true}) {
      SampleTensor x(DType::bf16, {300, 24}), dy(DType::bf16, {300, 16}), dw(dtype, {16, 24});
      x.fill_normal(1), dy.fill_normal(2), dw.fill_normal(3);
      const std::vector<double> before = dw.values();
      RecordedProgram p(2);
      const Buffer bx = p.input("x", x), bdy = p.input("dy", dy), bdw = p.input("dw", dw);
      linear_dw_at_once(p.pb, bx, bdy, bdw, overwrite);
      p.run();
      ref::LinearGrads want = ref::linear_dw(dims(300, 24, 16), x.values(), dy.values());
      const ref::LinearGrads size =
          ref::linear_dw(dims(300, 24, 16), magnitudes(x.values()), magnitudes(dy.values()));
      for (std::size_t i = 0; i < want.dw.size(); ++i) {
        if (!overwrite) want.dw[i] += before[i];
      }
      expect_close(p.value(bdw), want.dw, size.dw, 300);
    }
  }
}

TEST(LinearScale, IsFoldedIntoTheWeightsForEveryGrouping) {
  const std::int64_t rows = 4, inputs = 24, outputs = 6;
  SampleTensor x(DType::f32, {rows, inputs}), dy(DType::f32, {rows, outputs});
  x.fill_normal(1), dy.fill_normal(2);
  const std::pair<Shape, std::int64_t> scales[] = {{{}, 1},
                                                   {{1}, 1},
                                                   {{outputs}, 1},
                                                   {{outputs, 1}, 1},
                                                   {{outputs, 4}, 4},
                                                   {{outputs, 2, 1}, 2},
                                                   {{outputs, inputs}, inputs}};
  for (const DType type : kWeightTypes) {
    const SampleWeight w = SampleWeight(type, outputs, inputs).fill(3);
    for (const auto& [shape, groups] : scales) {
      std::vector<float> factors(to_size(shape.elements()));
      for (std::size_t i = 0; i < factors.size(); ++i)
        factors[i] = 0.3f + 0.1f * static_cast<float>(i);
      // Scales too may start anywhere.
      support::DeviceVector<std::byte> odd(factors.size() * 4 + 1);
      std::memcpy(odd.data() + 1, factors.data(), factors.size() * 4);
      const ConstTensorView scale(odd.data() + 1, DType::f32, shape, support::test_device());
      const std::vector<double> scaled = w.scaled(factors, groups);
      const std::vector<double> xs = x.values();
      const std::vector<double> dys = dy.values();
      const ref::LinearDims d = dims(rows, inputs, outputs);
      SampleTensor y(DType::f32, {rows, outputs}), dx(DType::f32, {rows, inputs});
      forward(x, w, {.scale = scale}, y);
      expect_close(y, ref::linear(d, xs, scaled, {}),
                   ref::linear(d, magnitudes(xs), magnitudes(scaled), {}), inputs);
      backward(dy, w, {.scale = scale}, dx);
      expect_close(dx, ref::linear_dx(d, dys, scaled),
                   ref::linear_dx(d, magnitudes(dys), magnitudes(scaled)), outputs);
    }
  }
}

// One input of value 1: the output is the weight, for every code there is.
TEST(LinearWeights, KeepTheirExactValues) {
  SampleTensor x(DType::f32, {1, 1});
  x.set(0, 1);
  for (const DType type : {DType::f16, DType::bf16, DType::f8_e4m3, DType::f8_e5m2, DType::i8}) {
    const std::int64_t codes = size_of(type) == 1 ? 256 : 65536;
    SampleWeight w(type, codes, 1);
    for (std::int64_t c = 0; c < codes; ++c) {
      const auto code = static_cast<std::uint32_t>(c);
      const double value =
          type == DType::i8 ? static_cast<std::int8_t>(c) : ref::decode(code, type);
      w.set(to_size(c), code, value);
    }
    SampleTensor y(DType::f32, {1, codes});
    forward(x, w, {}, y);
    for (std::int64_t c = 0; c < codes; ++c) {
      const double want = w.values()[to_size(c)];
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(y[c])) << name_of(type) << " " << c;
      } else {
        EXPECT_EQ(y[c], want) << name_of(type) << " " << c;
      }
    }
  }
}

TEST(Linear, RefusesShapesThatDoNotFit) {
  SampleTensor x(DType::f32, {3, 4}), y(DType::f32, {3, 5}), scale(DType::f32, {3});
  SampleTensor f64(DType::f64, {5, 4}), bias(DType::f32, {4});
  const SampleWeight w(DType::f32, 5, 4), wrong(DType::f32, 4, 5);
  ThreadPool pool(1);
  Linear good = {.x = x.view(), .w = w.view(), .y = y.view()};
  Workspace workspace(linear_workspace(linear_size(good, 1)));
  good.workspace = workspace.view();
  EXPECT_NO_THROW(linear(good, support::test_stream(pool)));
  const auto refuses = [&](auto&& change) {
    Linear bad = good;
    change(bad);
    EXPECT_THROW(linear(bad, support::test_stream(pool)), Error);
  };
  refuses([&](Linear& a) { a.w = wrong.view(); });
  refuses([&](Linear& a) { a.w = f64.view(); });
  refuses([&](Linear& a) { a.scale = scale.view(); });
  refuses([&](Linear& a) { a.bias = bias.view(); });
  refuses([&](Linear& a) { a.y = y.view().rows(0, 2); });
  refuses([&](Linear& a) { a.x.strides[1] = 2; });
  refuses([&](Linear& a) { a.gelu = a.accumulate = true; });
  SampleTensor pre(DType::f32, y.shape()), other(DType::bf16, y.shape());
  refuses([&](Linear& a) { a.pre = pre.view(); });
  refuses([&](Linear& a) { a.gelu = true, a.pre = a.y; });
  refuses([&](Linear& a) { a.gelu = true, a.pre = other.view(); });
  refuses([&](Linear& a) { a.gelu = true, a.pre = pre.view().rows(0, 2); });
}

TEST(Linear, CutsProductsOfTwoResultsIntoEqualWholeQuanta) {
  EXPECT_EQ(cuda::rows_for_both(7168), 7168);
  EXPECT_EQ(cuda::rows_for_both(32760), 8192);
  EXPECT_EQ(cuda::rows_for_both(9001), 4608);
  for (const std::int64_t rows : {1, 255, 8192, 8193, 20001, 75600}) {
    const std::int64_t part = cuda::rows_for_both(rows);
    EXPECT_EQ(part % kTokenQuantum, 0) << rows;
    EXPECT_LE(part, 8192) << rows;
    EXPECT_EQ((rows + part - 1) / part, cuda::products_for_both(rows)) << rows;
  }
}

// Each call takes memory where a program is recorded for repetition (plan/graph_segments.h).
TEST(Linear, CountsTheCallsOfProductsOfTwoResults) {
  ProgramSet set;
  set.backend = {.device = Device::cuda};
  ProgramBuilder pb(set, "p");
  const auto cost = [&](std::int64_t rows, std::int64_t inputs, std::int64_t outputs, bool both) {
    const auto temp = [&](std::int64_t r, std::int64_t c) {
      return pb.temp("t", {r, c}, DType::bf16);
    };
    linear_into(pb, temp(rows, inputs), {.weight = temp(outputs, inputs)}, temp(rows, outputs),
                {.gelu = true, .pre = both ? temp(rows, outputs) : Buffer()});
    return set.programs[0].instructions.back().cost;
  };
  EXPECT_EQ(cost(32760, 5136, 13824, false).launches, 1u);
  EXPECT_EQ(cost(32760, 5136, 13824, true).launches, 4u);
  EXPECT_EQ(cost(7168, 5136, 13824, true).launches, 1u);
  EXPECT_EQ(cost(7168, 5136, 13824, true).flops, cost(7168, 5136, 13824, false).flops);
  EXPECT_EQ(cost(300, 64, 96, true).launches, 2u);  // one for each result
  EXPECT_EQ(cost(300, 64, 96, true).flops, 2 * cost(300, 64, 96, false).flops);
}

// Wide enough for the GPU's product with two results, which have rooms of their own behind rows.
TEST(Linear, GivesGeluAndWhatItIsOfInAWideLayer) {
  const std::int64_t rows = 3, inputs = 1024, outputs = 1032;
  const SampleWeight w = SampleWeight(DType::bf16, outputs, inputs).fill(1);
  SampleTensor x(DType::bf16, {rows, inputs}), bias(DType::bf16, {outputs});
  SampleTensor y(DType::bf16, {rows, outputs}, {.row_padding = 64});
  SampleTensor pre(DType::bf16, {rows, outputs}, {.row_padding = 8});
  SampleTensor alone = y, sum = pre;
  x.fill_normal(2), bias.fill_normal(3);
  forward(x, w, {.bias = bias.view(), .gelu = true, .pre = &pre}, y);
  forward(x, w, {.bias = bias.view()}, sum);
  forward(x, w, {.bias = bias.view(), .gelu = true}, alone);
  EXPECT_EQ(pre.bytes(), sum.bytes());
  EXPECT_EQ(y.bytes(), alone.bytes());
  EXPECT_NE(y.bytes(), pre.bytes());
}

TEST(LinearRecorded, ReadsAndWritesWhatItDeclares) {
  RecordedProgram p(2);
  SampleTensor x(DType::bf16, {300, 20}), w(DType::bf16, {12, 20}), bias(DType::f32, {12});
  SampleTensor scale(DType::f32, {12}), dw(DType::f32, {12, 20}), dbias(DType::f32, {12});
  SampleTensor dy(DType::bf16, {300, 12});
  x.fill_normal(1), w.fill_normal(2), bias.fill_normal(3), scale.fill_normal(4), dy.fill_normal(5);
  const Buffer bx = p.input("x", x), bdy = p.input("dy", dy), bdw = p.input("dw", dw),
               bdbias = p.input("dbias", dbias);
  const LinearWeight weight = {
      .weight = p.input("w", w), .bias = p.input("bias", bias), .scale = p.input("scale", scale)};
  const Buffer y = linear(p.pb, bx, weight, DType::f32);
  const Buffer dx = linear_dx(p.pb, bdy, weight, DType::bf16);
  linear_dw(p.pb, bx, bdy, bdw, bdbias);
  linear_into(p.pb, bx, {.weight = weight.weight}, y, {.alpha = 2, .accumulate = true});

  const Instruction& first = p.instruction(0);
  EXPECT_EQ(first.reads, (std::vector{bx, weight.weight, weight.scale, weight.bias}));
  ASSERT_EQ(first.writes.size(), 2u);  // y and the workspace
  EXPECT_EQ(first.writes[0], y);
  EXPECT_EQ(first.cost.work, Work::gemm);
  EXPECT_EQ(first.cost.flops, 2.0 * 300 * 20 * 12);
  EXPECT_EQ(p.instruction(3).reads, (std::vector{bx, weight.weight, y}));
  EXPECT_EQ(p.pb.shape(y), (Shape{300, 12}));
  EXPECT_EQ(p.pb.shape(dx), (Shape{300, 20}));

  p.run();
  const ref::LinearDims d = dims(300, 20, 12);
  std::vector<double> scaled = w.values();
  for (std::size_t i = 0; i < scaled.size(); ++i)
    scaled[i] *= scale[static_cast<std::int64_t>(i / 20)];
  scaled = multiplied(scaled, {DType::bf16});
  const std::vector<double> once = ref::linear(d, x.values(), scaled, bias.values());
  std::vector<double> want = ref::linear(d, x.values(), w.values(), {});
  for (std::size_t i = 0; i < want.size(); ++i) want[i] = 2 * want[i] + once[i];
  const std::vector<double> loose(4000, 60);  // products of magnitudes, scale and alpha included
  std::vector<double> large(to_size(300 * 20), 200);
  expect_close(p.value(y), want, loose, 20);
  expect_close(p.value(dx), ref::linear_dx(d, dy.values(), scaled), large, 12);
  const ref::LinearGrads g = ref::linear_dw(d, x.values(), dy.values());
  const ref::LinearGrads g_size =
      ref::linear_dw(d, magnitudes(x.values()), magnitudes(dy.values()));
  expect_close(p.value(bdw), g.dw, g_size.dw, 300);
  expect_close(p.value(bdbias), g.dbias, g_size.dbias, 300);
}

}  // namespace
}  // namespace ballast::ops::linear_test
