#include "ops/layer_norm.h"

#include <gtest/gtest.h>

#include "core/to_size.h"
#include "ops/kernels/token_quantum.h"
#include "tests/ref/layer_norm.h"
#include "tests/support/recorded_program.h"
#include "tests/support/row_op.h"

namespace ballast::ops::layer_norm_test {
namespace {

using namespace support;

constexpr float kEps = 1e-6f;

TEST(LayerNormRef, BackwardMatchesFiniteDifferences) {
  const Doubles x = normal_values(4 * 7, 1), dy = normal_values(4 * 7, 2);
  for (const bool one_plus : {false, true}) {
    const ref::NormTables tables = {.mul = normal_values(2 * 7, 3),
                                    .add = normal_values(2 * 7, 4),
                                    .index = {1, 0, 1, 1},
                                    .one_plus = one_plus};
    const double eps = 0.01;  // large enough to show
    const ref::LayerNormGrads grads = ref::layer_norm_backward(x, 7, tables, dy, eps, 2);
    const auto loss = [&](const Doubles& at, const ref::NormTables& t) {
      return dot(dy, ref::layer_norm(at, 7, t, eps).y);
    };
    const auto of_mul = [&](const Doubles& v) {
      ref::NormTables t = tables;
      t.mul = v;
      return loss(x, t);
    };
    const auto of_add = [&](const Doubles& v) {
      ref::NormTables t = tables;
      t.add = v;
      return loss(x, t);
    };
    const auto of_x = [&](const Doubles& v) { return loss(v, tables); };
    expect_close(grads.dx, finite_differences(x, of_x), 1e-8, "dx");
    expect_close(grads.dmul, finite_differences(tables.mul, of_mul), 1e-8, "dmul");
    expect_close(grads.dadd, finite_differences(tables.add, of_add), 1e-8, "dadd");
  }
}

// What the three uses of the op have in common: forward and backward of R rows with T table rows.
struct Case {
  DType x_dtype = DType::f32, y_dtype = DType::f32, table_dtype = DType::f32;
  std::int64_t rows = 9, width = 96, tables = 0;  // 0: plain
  bool indexed = false, one_plus = false, accumulate = false;
  SampleTensor::Layout layout = kStrided;
};

Index index_of(const Case& k) {
  Index index;
  for (std::int64_t r = 0; k.indexed && r < k.rows; ++r) {
    index.push_back(static_cast<std::int32_t>((r / 3 + r % 2) % k.tables));
  }
  return index;
}

void expect_matches_reference(const Case& k) {
  ThreadPool pool(2);
  const Shape shape = {k.rows, k.width}, table_shape = {k.tables, k.width};
  SampleTensor x(k.x_dtype, shape, k.layout), y(k.y_dtype, shape, k.layout);
  SampleTensor dy(k.y_dtype, shape, k.layout), dx(k.x_dtype, shape, k.layout);
  SampleTensor stats(DType::f32, {k.rows, 2}, kStrided);
  SampleTensor mul(k.table_dtype, table_shape, k.layout), add = mul;
  SampleTensor dmul(DType::f32, table_shape, kStrided), dadd = dmul;
  x.fill_normal(1, 3);
  mul.fill_normal(2);
  add.fill_normal(3);
  dy.fill_normal(4);
  dx.fill_normal(5);
  dmul.fill_normal(6);
  dadd.fill_normal(7);
  const Index index = index_of(k);
  const bool plain = k.tables == 0;
  const ConstTensorView mul_view = plain ? ConstTensorView() : mul.view();
  const ConstTensorView index_or_none = k.indexed ? index_view(index) : ConstTensorView();
  const ref::NormTables tables = {
      .mul = mul.values(), .add = add.values(), .index = values_of(index), .one_plus = k.one_plus};
  const auto width = to_size(k.width);
  const ref::LayerNorm want = ref::layer_norm(x.values(), width, tables, kEps);
  ref::LayerNormGrads grads = ref::layer_norm_backward(x.values(), width, tables, dy.values(), kEps,
                                                       to_size(plain ? 1 : k.tables));
  for (std::int64_t i = 0; i < dx.size() && k.accumulate; ++i) {
    grads.dx[to_size(i)] += dx[i];
  }
  for (std::int64_t i = 0; i < dmul.size(); ++i) {
    grads.dmul[to_size(i)] += dmul[i];
    grads.dadd[to_size(i)] += dadd[i];
  }

  layer_norm({.x = x.view(),
              .mul = mul_view,
              .add = plain ? ConstTensorView() : add.view(),
              .index = index_or_none,
              .one_plus = k.one_plus,
              .y = y.view(),
              .stats = stats.view(),
              .eps = kEps},
             support::test_stream(pool));
  layer_norm_backward({.x = x.view(),
                       .stats = stats.view(),
                       .mul = mul_view,
                       .index = index_or_none,
                       .one_plus = k.one_plus,
                       .dy = dy.view(),
                       .dx = dx.view(),
                       .accumulate = k.accumulate,
                       .dmul = plain ? TensorView() : dmul.view(),
                       .dadd = plain ? TensorView() : dadd.view()},
                      support::test_stream(pool));
  expect_close(stats, want.stats, 4e-7, "stats");  // two sums, a root and a quotient
  expect_close(y, want.y, 1e-6, "y");
  if (k.width == 1) {  // g - mean(g) is what rounding leaves of g, times rstd = 1000
    for (std::int64_t i = 0; i < dx.size(); ++i) {
      const auto at = to_size(i);
      const double g = std::abs(dy[i] * tables.factor(at, 0, 1));
      ASSERT_NEAR(dx[i], grads.dx[at], 6e-5 * g + rounding(k.x_dtype) * std::abs(dx[i])) << i;
    }
  } else {
    expect_close(dx, grads.dx, 2e-6, "dx");  // two more sums and a difference of larger terms
  }
  if (plain) return;
  expect_close(dmul, grads.dmul, 1e-6, "dmul");
  expect_close(dadd, grads.dadd, 1e-6, "dadd");
}

TEST(LayerNorm, PlainFormMatchesReference) {
  for (const std::int64_t width : kWidths) {
    for (const DType x : kActivations) {
      for (const DType y : kActivations) {
        expect_matches_reference({.x_dtype = x, .y_dtype = y, .width = width});
        expect_matches_reference({.x_dtype = x, .y_dtype = y, .width = width, .accumulate = true});
      }
    }
  }
}

TEST(LayerNorm, AffineFormMatchesReference) {
  for (const std::int64_t width : kWidths) {
    for (const DType table : kParameters) {
      for (const DType y : kActivations) {
        expect_matches_reference(
            {.y_dtype = y, .table_dtype = table, .width = width, .tables = 1, .accumulate = true});
      }
    }
  }
}

TEST(LayerNorm, ModulatedFormMatchesReference) {
  for (const std::int64_t width : kWidths) {
    for (const DType x : kActivations) {
      for (const bool indexed : {false, true}) {
        expect_matches_reference({.x_dtype = x,
                                  .y_dtype = DType::bf16,
                                  .width = width,
                                  .tables = 3,
                                  .indexed = indexed,
                                  .one_plus = true});
      }
    }
  }
}

// More rows than a GPU has blocks of them, so that blocks go on to a second row and another table.
TEST(LayerNorm, MatchesReferenceAtTheWidthsOfTheModels) {
  for (const std::int64_t width : kRegisterWidths) {
    for (const DType x : kActivations) {
      expect_matches_reference({.x_dtype = x,
                                .y_dtype = DType::bf16,
                                .rows = width == 1536 ? 1301 : 37,
                                .width = width,
                                .tables = 3,
                                .indexed = true,
                                .one_plus = true,
                                .accumulate = true,
                                .layout = kAligned});
    }
    for (const DType table : kParameters) {
      expect_matches_reference({.x_dtype = DType::bf16,
                                .y_dtype = DType::bf16,
                                .table_dtype = table,
                                .width = width,
                                .tables = 1,
                                .layout = kAligned});
    }
    expect_matches_reference(
        {.x_dtype = DType::bf16, .y_dtype = DType::bf16, .width = width, .layout = kAligned});
  }
}

// One element is far from the others, wherever in the row it lies: squared differences to that
// element instead of the mean would be 5000 times the variance.
TEST(LayerNorm, IsAccurateWhenOneElementIsLarge) {
  ThreadPool pool(1);
  for (const std::int64_t large : {0, 8, 511, 512, 5119}) {
    SampleTensor x(DType::bf16, {1, 5120}), y = x, stats(DType::f32, {1, 2});
    x.fill_normal(1);
    for (std::int64_t i = 0; i < x.size(); ++i) x.set(i, x[i] + 40);
    x.set(large, 3000);
    layer_norm({.x = x.view(), .y = y.view(), .stats = stats.view(), .eps = kEps},
               support::test_stream(pool));
    const ref::LayerNorm want = ref::layer_norm(x.values(), 5120, {}, kEps);
    expect_close(y, want.y, 1e-6, "y");
    EXPECT_NEAR(stats[1], want.stats[1], 1e-6 * want.stats[1]) << large;
  }
}

TEST(LayerNorm, IsAccurateWhenTheMeanIsLarge) {
  ThreadPool pool(1);
  SampleTensor x(DType::f32, {2, 1536}), y = x, stats(DType::f32, {2, 2});
  x.fill_normal(1);
  for (std::int64_t i = 0; i < x.size(); ++i) x.set(i, x[i] + 1000);
  layer_norm({.x = x.view(), .y = y.view(), .stats = stats.view(), .eps = kEps},
             support::test_stream(pool));
  // The mean itself is known to 1000 * 2^-24 = 6e-5; E[x^2] - mean^2 would be wrong by 6e-2.
  expect_close(y, ref::layer_norm(x.values(), 1536, {}, kEps).y, 6e-5, "y");
}

// Everything computed from fixed inputs by calls of these many rows.
struct Result {
  SampleTensor y, stats, dx, dmul, dadd;
};
Result run(DType dtype, int threads, const std::vector<std::int64_t>& cuts, bool in_place = false,
           std::int64_t width = 301) {
  const std::int64_t rows = 2 * kTokenQuantum + 37, tables = 2;
  ThreadPool pool(threads);
  SampleTensor x(dtype, {rows, width}), dy = x, mul(DType::f32, {tables, width}), add = mul;
  x.fill_normal(1);
  dy.fill_normal(2);
  mul.fill_normal(3);
  add.fill_normal(4);
  const Index index = index_of({.rows = rows, .tables = tables, .indexed = true});
  Result out = {x, SampleTensor(DType::f32, {rows, 2}), dy, SampleTensor(DType::f32, {2, width}),
                SampleTensor(DType::f32, {2, width})};
  std::int64_t begin = 0;
  for (const std::int64_t n : cuts) {
    const auto part = [&](auto& t) { return t.view().rows(begin, n); };
    const ConstTensorView index_part = index_view(index).rows(begin, n);
    layer_norm({.x = part(in_place ? out.y : x),
                .mul = mul.view(),
                .add = add.view(),
                .index = index_part,
                .one_plus = true,
                .y = part(out.y),
                .stats = part(out.stats),
                .eps = kEps},
               support::test_stream(pool));
    layer_norm_backward({.x = part(x),
                         .stats = part(out.stats),
                         .mul = mul.view(),
                         .index = index_part,
                         .one_plus = true,
                         .dy = part(in_place ? out.dx : dy),
                         .dx = part(out.dx),
                         .dmul = out.dmul.view(),
                         .dadd = out.dadd.view()},
                        support::test_stream(pool));
    begin += n;
  }
  EXPECT_EQ(begin, rows);
  return out;
}

void expect_same_bits(const Result& a, const Result& b) {
  EXPECT_EQ(a.y.bytes(), b.y.bytes());
  EXPECT_EQ(a.stats.bytes(), b.stats.bytes());
  EXPECT_EQ(a.dx.bytes(), b.dx.bytes());
  EXPECT_EQ(a.dmul.bytes(), b.dmul.bytes());
  EXPECT_EQ(a.dadd.bytes(), b.dadd.bytes());
}

TEST(LayerNorm, GivesTheSameBitsForAnyThreadCountChunkingAndInPlace) {
  for (const DType dtype : kActivations) {
    const Result whole = run(dtype, 1, {2 * kTokenQuantum + 37});
    expect_same_bits(whole, run(dtype, 2, {2 * kTokenQuantum + 37}));
    expect_same_bits(whole, run(dtype, 3, {2 * kTokenQuantum + 37}));
    expect_same_bits(whole, run(dtype, 3, {kTokenQuantum, kTokenQuantum + 37}));
    expect_same_bits(whole, run(dtype, 2, {kTokenQuantum, kTokenQuantum, 37}));
    expect_same_bits(whole, run(dtype, 2, {2 * kTokenQuantum + 37}, true));
  }
}

TEST(LayerNorm, GivesTheSameBitsForAnyChunkingAtAWidthOfTheModels) {
  const Result whole = run(DType::bf16, 2, {2 * kTokenQuantum + 37}, false, 1536);
  expect_same_bits(whole, run(DType::bf16, 2, {kTokenQuantum, kTokenQuantum, 37}, false, 1536));
  expect_same_bits(whole, run(DType::bf16, 2, {2 * kTokenQuantum, 37}, true, 1536));
}

TEST(LayerNorm, AcceptsNoRows) {
  ThreadPool pool(2);
  SampleTensor x(DType::bf16, {0, 8}), y = x, stats(DType::f32, {0, 2}), dadd(DType::f32, {1, 8});
  dadd.fill_normal(1);
  const SampleTensor before = dadd;
  layer_norm({.x = x.view(), .y = y.view(), .stats = stats.view()}, support::test_stream(pool));
  layer_norm_backward(
      {.x = x.view(), .stats = stats.view(), .dy = y.view(), .dx = x.view(), .dadd = dadd.view()},
      support::test_stream(pool));
  EXPECT_EQ(dadd.bytes(), before.bytes());
}

TEST(LayerNorm, RefusesAnIndexBeyondTheTables) {
  if (test_device() == Device::cuda) GTEST_SKIP() << "an index in GPU memory is not looked at";
  ThreadPool pool(1);
  SampleTensor x(DType::f32, {2, 4}), mul(DType::f32, {2, 4}), stats(DType::f32, {2, 2});
  for (const std::int32_t wrong : {-1, 2}) {
    const Index index = {0, wrong};
    EXPECT_THROW(layer_norm({.x = x.view(),
                             .mul = mul.view(),
                             .index = index_view(index),
                             .y = x.view(),
                             .stats = stats.view()},
                            support::test_stream(pool)),
                 Error);
  }
}

TEST(LayerNorm, RefusesTablesThatDoNotFit) {
  ThreadPool pool(1);
  SampleTensor x(DType::f32, {2, 4}), mul(DType::f32, {2, 4}), add(DType::f32, {3, 4});
  SampleTensor narrow(DType::f32, {2, 3}), stats(DType::f32, {2, 2});
  LayerNorm a = {.x = x.view(), .mul = mul.view(), .y = x.view(), .stats = stats.view()};
  a.add = add.view();
  EXPECT_THROW(layer_norm(a, support::test_stream(pool)), Error);
  a.add = narrow.view();
  EXPECT_THROW(layer_norm(a, support::test_stream(pool)), Error);
}

TEST(LayerNorm, IsRecordedWithItsOperands) {
  RecordedProgram p;
  SampleTensor x(DType::f32, {6, 24}), w(DType::f32, {24}), bias(DType::f32, {24}), dx = x;
  SampleTensor dy(DType::bf16, {6, 24}), grad(DType::f32, {24});
  x.fill_normal(1);
  w.fill_normal(2);
  bias.fill_normal(3);
  dy.fill_normal(4);
  const Buffer bx = p.input("x", x), bw = p.input("w", w), bb = p.input("bias", bias);
  const Buffer bdy = p.input("dy", dy), bdx = p.input("dx", dx);
  const Buffer bdw = p.input("dw", grad), bdb = p.input("dbias", grad);
  const NormTables affine = {.mul = bw, .add = bb, .index = {}};  // norm3: vectors as tables
  const LayerNormOut out = layer_norm(p.pb, bx, affine, kEps, DType::bf16);
  layer_norm_backward(p.pb, bx, out.stats, affine, bdy, bdx, true, {.dmul = bdw, .dadd = bdb});
  EXPECT_EQ(p.instruction(0).reads, (std::vector{bx, bw, bb}));
  EXPECT_EQ(p.instruction(0).writes, (std::vector{out.y, out.stats}));
  EXPECT_EQ(p.instruction(1).reads, (std::vector{bx, out.stats, bw, bdy, bdw, bdb, bdx}));
  EXPECT_EQ(p.results(1), (std::vector{bdx, bdw, bdb}));
  p.run();
  const ref::NormTables tables = {.mul = w.values(), .add = bias.values(), .index = {}};
  const ref::LayerNormGrads want =
      ref::layer_norm_backward(x.values(), 24, tables, dy.values(), kEps, 1);
  EXPECT_EQ(p.value(out.y).dtype(), DType::bf16);
  EXPECT_EQ(p.value(out.stats).shape(), (Shape{6, 2}));
  expect_close(p.value(out.y), ref::layer_norm(x.values(), 24, tables, kEps).y, 1e-6, "y");
  expect_close(p.value(bdx), want.dx, 2e-6, "dx");
  expect_close(p.value(bdw), want.dmul, 1e-6, "dw");
  expect_close(p.value(bdb), want.dadd, 1e-6, "dbias");
  layer_norm_backward(p.pb, bx, out.stats, {}, bdy, bdx, false, {});  // plain, nothing trained
  EXPECT_EQ(p.instruction(2).reads, (std::vector{bx, out.stats, bdy}));
  EXPECT_EQ(p.instruction(2).writes, (std::vector{bdx}));
}

}  // namespace
}  // namespace ballast::ops::layer_norm_test
