#include "ops/sgd.h"

#include <gtest/gtest.h>

#include "core/to_size.h"
#include "tests/ref/sgd.h"
#include "tests/support/recorded_program.h"
#include "tests/support/test_device.h"

namespace ballast::ops::sgd_test {
namespace {

using support::RecordedProgram;
using support::SampleTensor;

struct Case {
  std::int64_t n;
  DType g;
  double momentum;
};
class SgdOnCpu : public testing::TestWithParam<Case> {};

TEST_P(SgdOnCpu, MatchesReferenceOnAnyNumberOfThreads) {
  const auto [n, type, momentum] = GetParam();
  std::vector<double> first;
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    SampleTensor p(DType::f32, {n}, {.start = threads}), b(DType::f32, {n});
    p.fill_normal(1);
    std::vector<double> want = p.values(), want_b = b.values();
    for (std::uint32_t k = 2; k < 6; ++k) {
      SampleTensor g(type, {n}, {.start = 3});
      g.fill_normal(k);
      sgd({.p = p.view(),
           .b = momentum == 0 ? TensorView() : b.view(),
           .g = g.view(),
           .grad_scale = {},
           .options = {.momentum = momentum, .weight_decay = 0.1},
           .learning_rate = 0.01},
          support::test_stream(pool));
      ref::sgd(want, want_b, g.values(), 0.01, momentum, 0.1);
    }
    for (std::int64_t i = 0; i < n; ++i) {
      ASSERT_NEAR(p[i], want[to_size(i)], 4 * 0x1p-24 * 8) << i;
    }
    if (threads == 1) first = p.values();
    EXPECT_TRUE(p.values() == first);
    EXPECT_TRUE(p.padding_untouched());
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, SgdOnCpu,
                         testing::Values(Case{0, DType::f32, 0.9}, Case{1, DType::f32, 0.9},
                                         Case{33, DType::bf16, 0.9}, Case{20001, DType::f32, 0},
                                         Case{20001, DType::bf16, 0.9}));

TEST(Sgd, ScalesTheGradientBeforeTheDecayIsAdded) {
  ThreadPool pool(1);
  SampleTensor p(DType::f32, {1}), g(DType::f32, {1}), scale(DType::f32, {1});
  p.fill({2});
  g.fill({8});
  scale.fill({0.25});
  sgd({.p = p.view(),
       .b = {},
       .g = g.view(),
       .grad_scale = scale.view(),
       .options = {.weight_decay = 0.5},
       .learning_rate = 0.5},
      support::test_stream(pool));
  EXPECT_EQ(p[0], 2 - 0.5 * (2 + 1));
}

TEST(Sgd, RefusesMomentumWithoutMemory) {
  ThreadPool pool(1);
  SampleTensor p(DType::bf16, {4}), g(DType::f32, {4});
  EXPECT_THROW(sgd({.p = p.view(),
                    .b = {},
                    .g = g.view(),
                    .grad_scale = {},
                    .options = {.momentum = 0.9},
                    .learning_rate = 0.5},
                   support::test_stream(pool)),
               Error);
}

TEST(SgdRecorded, TakesTheLearningRateFromTheRun) {
  RecordedProgram program;
  const Buffer p = program.input("p", SampleTensor(DType::f32, {2}).fill({4, 8}));
  const Buffer b = program.input("b", SampleTensor(DType::f32, {2}));
  const Buffer g = program.input("g", SampleTensor(DType::f32, {2}).fill({1, -2}));
  sgd(program.pb, p, b, g, {}, {.momentum = 0.5});
  program.run({.step = 1, .learning_rate = 1});
  program.run({.step = 2, .learning_rate = 0.5});
  EXPECT_EQ(program.value(p).values(), (std::vector<double>{4 - 1 - 0.75, 8 + 2 + 1.5}));
}

}  // namespace
}  // namespace ballast::ops::sgd_test
