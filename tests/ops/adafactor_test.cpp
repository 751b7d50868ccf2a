#include "ops/adafactor.h"

#include <gtest/gtest.h>

#include "core/to_size.h"
#include "tests/ref/adafactor.h"
#include "tests/support/recorded_program.h"
#include "tests/support/test_device.h"

namespace ballast::ops::adafactor_test {
namespace {

using support::RecordedProgram;
using support::SampleTensor;

struct State {
  SampleTensor p, row, column, v, workspace;
  explicit State(const Shape& shape, DType type = DType::f32)
      : p(type, shape),
        row(DType::f32, {shape.rank() < 2 ? 0 : shape.rows()}),
        column(DType::f32, {shape.rank() < 2 ? 0 : shape.rows() / shape[-2] * shape.back()}),
        v(DType::f32, {shape.rank() < 2 ? shape.elements() : 0}),
        workspace(DType::u8, {adafactor_workspace(shape)}) {}

  void update(const SampleTensor& g, int k, double lr, const AdafactorOptions& options,
              ThreadPool& pool, const ParameterRounding& rounding = {}) {
    adafactor({.p = p.view(),
               .row = row.view(),
               .column = column.view(),
               .v = v.view(),
               .g = g.view(),
               .grad_scale = {},
               .workspace = workspace.view(),
               .options = options,
               .step = k,
               .learning_rate = lr,
               .rounding = rounding},
              support::test_stream(pool));
  }
};

struct Case {
  Shape shape;
  DType g;
  AdafactorOptions options;
};
class AdafactorOnCpu : public testing::TestWithParam<Case> {};

TEST_P(AdafactorOnCpu, MatchesReferenceOverSomeSteps) {
  const auto& [shape, type, o] = GetParam();
  ThreadPool pool(2);
  State s(shape);
  s.p.fill_normal(1, 0.3);
  ref::AdafactorState want;
  want.p = s.p.values();
  want.row = s.row.values();
  want.column = s.column.values();
  want.v = s.v.values();
  if (shape.rank() >= 2) {
    want.stack = to_size(shape.rows() / shape[-2]);
    want.rows = to_size(shape[-2]);
    want.columns = to_size(shape.back());
  }
  const double lr = 0.02;
  for (int k = 1; k <= 5; ++k) {
    SampleTensor g(type, shape, {.start = 1});
    g.fill_normal(static_cast<std::uint32_t>(10 + k), k == 3 ? 1e3 : 1);  // clipped at step 3
    s.update(g, k, lr, o, pool);
    ref::adafactor(want, g.values(),
                   {.eps_rows = o.eps_rows,
                    .eps_scale = o.eps_scale,
                    .clip_threshold = o.clip_threshold,
                    .decay_rate = o.decay_rate,
                    .weight_decay = o.weight_decay,
                    .lr = lr,
                    .scale_parameter = o.scale_parameter,
                    .relative_step = o.relative_step,
                    .warmup_init = o.warmup_init},
                   k);
  }
  for (std::int64_t i = 0; i < s.p.size(); ++i) {
    const double w = want.p[to_size(i)];
    // p and a step of a few lr are rounded five times.
    ASSERT_NEAR(s.p[i], w, 5 * 0x1p-24 * (2 * std::abs(w) + 1)) << i;
  }
  for (std::int64_t i = 0; i < s.row.size(); ++i) {
    const double w = want.row[to_size(i)];
    ASSERT_NEAR(s.row[i], w, 1e-6 * w);
  }
  for (std::int64_t i = 0; i < s.column.size(); ++i) {
    const double w = want.column[to_size(i)];
    ASSERT_NEAR(s.column[i], w, 1e-6 * w);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, AdafactorOnCpu,
    testing::Values(Case{{37, 129}, DType::f32, {}}, Case{{1, 5}, DType::f32, {}},
                    Case{{70, 1}, DType::bf16, {}}, Case{{3, 2, 9, 11}, DType::f32, {}},
                    Case{{20001}, DType::f32, {}}, Case{{3}, DType::bf16, {}},
                    Case{{37, 129},
                         DType::f32,
                         {.weight_decay = 0.1, .scale_parameter = false, .relative_step = false}},
                    Case{{40, 500},
                         DType::bf16,
                         {.clip_threshold = 0.5, .decay_rate = -0.5, .warmup_init = true}}));

TEST(Adafactor, FirstStepIsOfTheSizeOfTheParameterTimesOnePercent) {
  ThreadPool pool(1);
  State s({2, 2});
  s.p.fill({3, 3, 3, 3});
  SampleTensor g(DType::f32, {2, 2});
  g.fill({1, -1, -1, 1});
  s.update(g, 1, 0, {}, pool);
  for (std::int64_t i = 0; i < 4; ++i) EXPECT_NEAR(s.p[i], 3 - 0.03 * g[i], 1e-6);
}

TEST(Adafactor, LeavesAWeightWithoutGradientWhereItIs) {
  ThreadPool pool(1);
  State s({3, 5}), vector({7});
  s.p.fill_normal(1);
  vector.p.fill_normal(1);
  const std::vector<double> start = s.p.values(), vector_start = vector.p.values();
  s.update(SampleTensor(DType::f32, {3, 5}), 1, 0, {.eps_rows = 0}, pool);
  vector.update(SampleTensor(DType::f32, {7}), 1, 0, {.eps_rows = 0}, pool);
  EXPECT_EQ(s.p.values(), start);
  EXPECT_EQ(vector.p.values(), vector_start);
}

TEST(AdafactorBits, DoNotDependOnThreads) {
  for (const Shape& shape : {Shape{211, 203}, Shape{40003}}) {
    const SampleTensor g = SampleTensor(DType::f32, shape).fill_normal(2);
    for (const auto rounding :
         {UpdateRounding::nearest, UpdateRounding::kahan, UpdateRounding::stochastic}) {
      std::vector<double> want;
      for (const int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        State s(shape, DType::bf16);
        SampleTensor carry(DType::bf16, shape);
        s.p.fill_normal(1);
        for (int k = 1; k <= 2; ++k) {
          s.update(g, k, 0, {}, pool,
                   {.rounding = rounding,
                    .carry = carry.view(),
                    .random = random_source(1, "update", k, "w")});
        }
        if (want.empty()) want = s.p.values();
        EXPECT_TRUE(s.p.values() == want);
      }
    }
  }
}

TEST(AdafactorBits, RoundAVectorAndAMatrixWithTheWordsOfTheirElements) {
  // Each element of a constant matrix takes the same step, so the rounding alone tells them apart.
  const Shape shape = {7, 67};
  ThreadPool pool(2);
  State s(shape, DType::bf16);
  SampleTensor g(DType::f32, shape);
  for (std::int64_t i = 0; i < g.size(); ++i) {
    s.p.set(i, 1);
    g.set(i, 1);
  }
  const RandomSource random = random_source(1, "update", 1, "w");
  s.update(g, 1, 0.00125, {.scale_parameter = false, .relative_step = false}, pool,
           {.rounding = UpdateRounding::stochastic, .random = random});
  for (std::int64_t i = 0; i < g.size(); ++i) {
    // 1 - 0.00125 is 0.32 of the way from 1 to the next bf16 below it; magnitudes round up when the
    // word's upper 16 bits fill what is missing.
    const double word = (random.word(static_cast<std::uint64_t>(i)) >> 16) / 65536.0;
    EXPECT_EQ(s.p[i] == 1, word >= 0.32) << i << " " << word;
  }
}

TEST(AdafactorChecks, RefuseWhatDoesNotFit) {
  ThreadPool pool(1);
  State s({4, 6}), other({6, 4}), vector({24});
  const SampleTensor g = SampleTensor(DType::f32, {4, 6}).fill_normal(1);
  EXPECT_NO_THROW(s.update(g, 1, 0, {}, pool));
  EXPECT_THROW(s.update(g, 0, 0, {}, pool), Error);
  std::swap(s.row, other.row);
  EXPECT_THROW(s.update(g, 1, 0, {}, pool), Error);
  std::swap(s.row, other.row);
  std::swap(s.workspace, vector.workspace);
  EXPECT_THROW(s.update(g, 1, 0, {}, pool), Error);
}

TEST(AdafactorRecorded, DeclaresItsWorkspace) {
  const Shape shape = {5, 8};
  State s(shape);
  s.p.fill_normal(1);
  const SampleTensor g = SampleTensor(DType::f32, shape).fill_normal(2);
  RecordedProgram program;
  const AdafactorBuffers on = {.p = program.input("p", s.p),
                               .row = program.input("row", s.row),
                               .column = program.input("column", s.column),
                               .g = program.input("g", g)};
  adafactor(program.pb, on, {.relative_step = false});
  ThreadPool pool(1);
  for (int k = 1; k <= 2; ++k) {
    program.run({.step = k, .learning_rate = 0.1});
    s.update(g, k, 0.1, {.relative_step = false}, pool);
  }
  EXPECT_EQ(program.value(on.p).values(), s.p.values());
  EXPECT_EQ(program.value(on.row).values(), s.row.values());
}

}  // namespace
}  // namespace ballast::ops::adafactor_test
