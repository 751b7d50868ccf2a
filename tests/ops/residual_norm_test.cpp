#include "ops/residual_norm.h"

#include <gtest/gtest.h>

#include "core/to_size.h"
#include "ops/kernels/token_quantum.h"
#include "tests/ref/residual_norm.h"
#include "tests/support/recorded_program.h"
#include "tests/support/row_op.h"

namespace ballast::ops::residual_norm_test {
namespace {

using namespace support;

constexpr float kEps = 1e-6f;

struct Case {
  DType x = DType::f32, y = DType::f32, z = DType::f32, table = DType::f32;
  std::int64_t rows = 9, width = 96;
  bool gated = true, indexed = true, in_place = false;
  SampleTensor::Layout layout = kStrided;
  std::vector<std::int64_t> cuts = {};  // rows of the calls; none: one call
};
struct Operands {
  SampleTensor x, y, gate, mul, add;
  Index index;

  explicit Operands(const Case& k)
      : x(k.x, {k.rows, k.width}, k.layout),
        y(k.y, {k.rows, k.width}, k.layout),
        gate(k.table, {3, k.width}, k.layout),
        mul(k.table, {3, k.width}, k.layout),
        add(k.table, {3, k.width}, k.layout) {
    x.fill_normal(1);
    y.fill_normal(2);
    gate.fill_normal(3);
    mul.fill_normal(4);
    add.fill_normal(5);
    for (std::int64_t r = 0; r < k.rows; ++r) index.push_back(static_cast<std::int32_t>(r * r % 3));
  }
};
struct Result {
  SampleTensor out, z, stats;
};

Result run(const Case& k, bool fused, int threads = 2) {
  ThreadPool pool(threads);
  Operands o(k);
  Result r = {o.x, SampleTensor(k.z, {k.rows, k.width}, k.layout),
              SampleTensor(DType::f32, {k.rows, 2})};
  std::int64_t first = 0;
  for (const std::int64_t n : k.cuts.empty() ? std::vector{k.rows} : k.cuts) {
    const auto part = [&](auto& t) { return t.view().rows(first, n); };
    const ConstTensorView index =
        k.indexed ? index_view(o.index).rows(first, n) : ConstTensorView();
    const ResidualNorm a = {.residual = {.x = part(k.in_place ? r.out : o.x),
                                         .y = part(o.y),
                                         .gate = k.gated ? o.gate.view() : ConstTensorView(),
                                         .index = index,
                                         .out = part(r.out)},
                            .norm = {.x = part(r.out),
                                     .mul = o.mul.view(),
                                     .add = o.add.view(),
                                     .index = index,
                                     .one_plus = k.gated,
                                     .y = part(r.z),
                                     .stats = part(r.stats),
                                     .eps = kEps}};
    if (fused) {
      residual_norm(a, support::test_stream(pool));
    } else {
      gated_residual(a.residual, support::test_stream(pool));
      layer_norm(a.norm, support::test_stream(pool));
    }
    first += n;
  }
  return r;
}

void expect_same_bits(const Result& a, const Result& b) {
  EXPECT_EQ(a.out.bytes(), b.out.bytes());
  EXPECT_EQ(a.z.bytes(), b.z.bytes());
  EXPECT_EQ(a.stats.bytes(), b.stats.bytes());
}

void expect_matches_reference(const Case& k) {
  const Operands o(k);
  const Result got = run(k, true);
  const auto width = to_size(k.width);
  ref::NormTables tables = {.mul = o.mul.values(),
                            .add = o.add.values(),
                            .index = k.indexed ? values_of(o.index) : std::vector<std::int32_t>(),
                            .one_plus = k.gated};
  const ref::ResidualNorm want = ref::residual_norm(
      o.x.values(), o.y.values(), width, k.gated ? o.gate.values() : Doubles(), tables, kEps);
  expect_close(got.out, want.out, 1.2e-7, "out");  // a product and a sum
  // Of the sum as it was rounded: what the roundings of its elements do to the norm is not the
  // norm's error.
  const ref::LayerNorm norm = ref::layer_norm(got.out.values(), width, tables, kEps);
  expect_close(got.stats, norm.stats, 1e-6, "stats");
  expect_close(got.z, norm.y, 1e-6, "z");
}

TEST(ResidualNorm, MatchesReferenceForAnyMixOfTypes) {
  for (const std::int64_t width : {3, 17, 96, 1536}) {
    for (const DType x : kActivations) {
      for (const DType y : kActivations) {
        for (const DType z : kActivations) {
          expect_matches_reference({.x = x, .y = y, .z = z, .width = width});
          expect_matches_reference(
              {.x = x, .y = y, .z = z, .width = width, .gated = false, .indexed = false});
        }
      }
    }
  }
}

// More rows than a GPU has blocks of them at the smallest width.
TEST(ResidualNorm, MatchesReferenceAtTheWidthsOfTheModels) {
  for (const std::int64_t width : kRegisterWidths) {
    for (const DType x : kActivations) {
      for (const bool gated : {true, false}) {
        expect_matches_reference({.x = x,
                                  .y = DType::bf16,
                                  .z = DType::bf16,
                                  .table = width == 3072 ? DType::bf16 : DType::f32,
                                  .rows = width == 1536 && x == DType::bf16 ? 811 : 37,
                                  .width = width,
                                  .gated = gated,
                                  .layout = kAligned});
      }
    }
  }
}

TEST(ResidualNorm, GivesTheBitsOfTheTwoOperations) {
  for (const DType x : kActivations) {
    for (const DType y : kActivations) {
      const Case odd = {.x = x, .y = y, .z = y, .width = 301};
      expect_same_bits(run(odd, true), run(odd, false));
    }
    for (const std::int64_t width : kRegisterWidths) {
      for (const bool gated : {true, false}) {
        const Case wide = {.x = x,
                           .y = DType::bf16,
                           .z = DType::bf16,
                           .rows = 37,
                           .width = width,
                           .gated = gated,
                           .layout = kAligned};
        expect_same_bits(run(wide, true), run(wide, false));
      }
    }
  }
}

TEST(ResidualNorm, GivesTheSameBitsForAnyThreadCountChunkingAndInPlace) {
  constexpr std::int64_t kRows = 2 * kTokenQuantum + 37;
  for (const std::int64_t width : {301, 1536}) {
    Case k = {.x = DType::bf16,
              .y = DType::bf16,
              .z = DType::bf16,
              .rows = kRows,
              .width = width,
              .layout = kAligned};
    const Result whole = run(k, true, 1);
    expect_same_bits(whole, run(k, true, 3));
    k.in_place = true;
    expect_same_bits(whole, run(k, true));
    k.cuts = {kTokenQuantum, kTokenQuantum + 37};
    expect_same_bits(whole, run(k, true));
  }
}

TEST(ResidualNorm, AcceptsNoRows) { run({.rows = 0}, true); }

TEST(ResidualNorm, RefusesWhatDoesNotFit) {
  ThreadPool pool(1);
  for (const std::int64_t width : {8, 1536}) {
    SampleTensor x(DType::bf16, {4, width}), y = x, z = x, stats(DType::f32, {4, 2});
    SampleTensor few(DType::f32, {3, 2}), gate(DType::f32, {1, 16});
    const ResidualNorm good = {.residual = {.x = x.view(), .y = y.view(), .out = x.view()},
                               .norm = {.x = {}, .y = z.view(), .stats = stats.view()}};
    EXPECT_NO_THROW(residual_norm(good, support::test_stream(pool)));
    const auto refuses = [&](auto&& change) {
      ResidualNorm bad = good;
      change(bad);
      EXPECT_THROW(residual_norm(bad, support::test_stream(pool)), Error);
    };
    refuses([&](ResidualNorm& a) { a.norm.stats = few.view(); });
    refuses([&](ResidualNorm& a) { a.norm.y = x.view(); });
    refuses([&](ResidualNorm& a) { a.residual.y = y.view().rows(0, 3); });
    refuses([&](ResidualNorm& a) { a.residual.gate = gate.view(); });
  }
}

TEST(ResidualNorm, IsRecordedWithItsOperands) {
  RecordedProgram p;
  SampleTensor x(DType::f32, {6, 24}), y(DType::bf16, {6, 24}), table(DType::f32, {24});
  x.fill_normal(1);
  y.fill_normal(2);
  table.fill_normal(3);
  const Buffer bx = p.input("x", x), by = p.input("y", y), bt = p.input("table", table);
  const LayerNormOut out = residual_norm(p.pb, bx, by, {.table = bt, .index = {}}, bx,
                                         {.mul = bt, .add = {}, .index = {}}, kEps, DType::bf16);
  EXPECT_EQ(p.instruction(0).reads, (std::vector{bx, by, bt, bt}));
  EXPECT_EQ(p.instruction(0).writes, (std::vector{bx, out.y, out.stats}));
  p.run();
  const ref::ResidualNorm want =
      ref::residual_norm(x.values(), y.values(), 24, table.values(),
                         {.mul = table.values(), .add = {}, .index = {}}, kEps);
  EXPECT_EQ(p.value(out.y).dtype(), DType::bf16);
  expect_close(p.value(bx), want.out, 1.2e-7, "out");
  expect_close(p.value(out.y), want.norm.y, 1e-6, "z");
}

}  // namespace
}  // namespace ballast::ops::residual_norm_test
