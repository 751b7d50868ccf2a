#include "ops/adamw.h"

#include <gtest/gtest.h>

#include "core/to_size.h"
#include "tests/ref/adamw.h"
#include "tests/support/golden_file.h"
#include "tests/support/recorded_program.h"
#include "tests/support/test_device.h"

namespace ballast::ops::adamw_test {
namespace {

using support::GoldenFile;
using support::RecordedProgram;
using support::SampleTensor;

constexpr AdamWOptions kOptions = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.01};

struct State {
  SampleTensor p, m, v;
  explicit State(std::int64_t n, std::int64_t start = 0)
      : p(DType::f32, {n}, {.start = start}),
        m(DType::f32, {n}, {.start = start}),
        v(DType::f32, {n}, {.start = start}) {}

  void update(const SampleTensor& g, int step, double lr, ThreadPool& pool,
              ConstTensorView scale = {}) {
    adamw({.p = p.view(),
           .m = m.view(),
           .v = v.view(),
           .g = g.view(),
           .grad_scale = scale,
           .options = kOptions,
           .step = step,
           .learning_rate = lr},
          support::test_stream(pool));
  }
};

void expect_state_near(const State& got, const ref::AdamWState& want, double lr, int steps) {
  for (std::int64_t i = 0; i < got.p.size(); ++i) {
    const auto at = to_size(i);
    // Per step: three roundings of m and of v, of p and of what it loses (at most a few lr).
    EXPECT_NEAR(got.m[i], want.m[at], steps * 4 * 0x1p-24 * (std::abs(want.m[at]) + 1));
    EXPECT_NEAR(got.v[i], want.v[at], steps * 4 * 0x1p-24 * want.v[at]);
    EXPECT_NEAR(got.p[i], want.p[at], steps * 0x1p-24 * (3 * std::abs(want.p[at]) + 100 * lr));
  }
}

class AdamWOnCpu : public testing::TestWithParam<std::tuple<std::int64_t, DType>> {};

TEST_P(AdamWOnCpu, MatchesReferenceOverSomeSteps) {
  const auto [n, g_type] = GetParam();
  ThreadPool pool(2);
  State state(n, 1);
  state.p.fill_normal(1);
  ref::AdamWState want = {state.p.values(), state.m.values(), state.v.values()};
  for (int step = 1; step <= 4; ++step) {
    SampleTensor g(g_type, {n}, {.start = 3});
    g.fill_normal(static_cast<std::uint32_t>(10 + step));
    state.update(g, step, 0.01, pool);
    ref::adamw(want, g.values(), 0.01, 0.9, 0.99, 1e-8, 0.01, step);
  }
  expect_state_near(state, want, 0.01, 4);
  EXPECT_TRUE(state.p.padding_untouched() && state.m.padding_untouched() &&
              state.v.padding_untouched());
}

INSTANTIATE_TEST_SUITE_P(Sizes, AdamWOnCpu,
                         testing::Combine(testing::Values(0, 1, 7, 64, 20001),
                                          testing::Values(DType::f32, DType::bf16)));

TEST(AdamWOptional, GradScaleMultipliesTheGradient) {
  ThreadPool pool(1);
  SampleTensor g(DType::f32, {37}), quarter(DType::f32, {37}), scale(DType::f32, {1});
  g.fill_normal(1);
  for (std::int64_t i = 0; i < 37; ++i) quarter.set(i, g[i] / 4);  // exact, as the scaling is
  scale.set(0, 0.25);
  State scaled(37), plain(37), unscaled(37);
  scaled.update(g, 1, 0.1, pool, scale.view());
  plain.update(quarter, 1, 0.1, pool);
  unscaled.update(g, 1, 0.1, pool);
  EXPECT_EQ(scaled.m.bytes(), plain.m.bytes());
  EXPECT_EQ(scaled.v.bytes(), plain.v.bytes());
  EXPECT_EQ(scaled.p.bytes(), plain.p.bytes());
  EXPECT_NE(scaled.m.bytes(), unscaled.m.bytes());
}

TEST(AdamWBits, DependNeitherOnThreadsNorOnPlaceNorOnCompany) {
  const std::int64_t n = 40003;
  std::vector<double> want;
  SampleTensor g(DType::bf16, {n});
  g.fill_normal(5);
  const auto run = [&](State& s, const SampleTensor& gradient, ThreadPool& pool) {
    for (int step = 1; step <= 3; ++step) s.update(gradient, step, 0.003, pool);
  };
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    State s(n, threads);
    s.p.fill_normal(1);
    run(s, g, pool);
    if (want.empty()) want = s.p.values();
    EXPECT_TRUE(s.p.values() == want);
  }
  ThreadPool pool(1);
  SampleTensor p(DType::f32, {n});
  p.fill_normal(1);
  for (const std::int64_t i : {0, 1, 2, 3, 16384, 40002}) {
    State alone(1);
    SampleTensor one(DType::bf16, {1});
    alone.p.set(0, p[i]);
    one.set(0, g[i]);
    run(alone, one, pool);
    EXPECT_EQ(alone.p[0], want[to_size(i)]) << i;
  }
}

// A tensor's end is computed by other code than its whole vectors.
TEST(AdamWBits, AreThoseOfAnyPieces) {
  ThreadPool pool(1);
  for (const DType type : {DType::f32, DType::bf16}) {
    const std::int64_t n = 365, piece = 73;  // no multiple of any vector
    State whole(n);
    whole.p.fill_normal(1);
    SampleTensor g(type, {n});
    g.fill_normal(2);
    const State before = whole;
    for (int step = 1; step <= 3; ++step) whole.update(g, step, 0.003, pool);
    for (std::int64_t first = 0; first < n; first += piece) {
      State part(piece);
      SampleTensor part_g(type, {piece});
      for (std::int64_t i = 0; i < piece; ++i) {
        part.p.set(i, before.p[first + i]);
        part_g.set(i, g[first + i]);
      }
      for (int step = 1; step <= 3; ++step) part.update(part_g, step, 0.003, pool);
      for (std::int64_t i = 0; i < piece; ++i) {
        EXPECT_EQ(part.p[i], whole.p[first + i]) << first + i;
        EXPECT_EQ(part.m[i], whole.m[first + i]) << first + i;
        EXPECT_EQ(part.v[i], whole.v[first + i]) << first + i;
      }
    }
  }
}

TEST(AdamWGolden, MatchesTheReferenceImplementation) {
  const GoldenFile golden("optimizer");
  ThreadPool pool(2);
  for (std::size_t c = 0; c < 2; ++c) {
    const std::string config = "config" + std::to_string(c);
    const auto& settings = golden.config().at("configs").at(c);
    SampleTensor p = golden["in." + config + ".p0"];
    SampleTensor m(DType::f32, p.shape()), v(DType::f32, p.shape());
    const SampleTensor grads = golden["in." + config + ".grads"];
    for (std::int64_t step = 0; step < 6; ++step) {
      SampleTensor g(DType::f32, p.shape());
      for (std::int64_t i = 0; i < 64; ++i) g.set(i, grads[step * 64 + i]);
      adamw({.p = p.view(),
             .m = m.view(),
             .v = v.view(),
             .g = g.view(),
             .grad_scale = {},
             .options = {.beta1 = settings.at("betas").at(0),
                         .beta2 = settings.at("betas").at(1),
                         .eps = settings.at("eps"),
                         .weight_decay = settings.at("weight_decay")},
             .step = step + 1,
             .learning_rate = settings.at("lr")},
            support::test_stream(pool));
      for (const auto& [name, ours] : {std::pair{"p", &p}, {"m", &m}, {"v", &v}}) {
        const std::string key = "out." + config + "." + name;
        const SampleTensor want = golden[key];
        for (std::int64_t i = 0; i < 64; ++i) {
          EXPECT_NEAR((*ours)[i], want[step * 64 + i], golden.tolerance(key)) << key << " " << i;
        }
      }
    }
    EXPECT_EQ(m[0], 0) << "weight 0 never gets a gradient";
  }
}

TEST(AdamWChecks, RefuseWhatDoesNotFit) {
  ThreadPool pool(1);
  State s(4);
  SampleTensor g(DType::f32, {4}), other(DType::f32, {5}), half(DType::f16, {4});
  EXPECT_NO_THROW(s.update(g, 1, 0.1, pool));
  EXPECT_THROW(s.update(g, 0, 0.1, pool), Error);
  EXPECT_THROW(s.update(other, 1, 0.1, pool), Error);
  EXPECT_THROW(s.update(half, 1, 0.1, pool), Error);
  EXPECT_THROW(s.update(g, 1, 0.1, pool, g.view()), Error);
}

// Tensors of one call: empty ones, small ones, some longer than a GPU's blocks, at any place.
TEST(AdamWTogether, HasTheBitsOfOneByOne) {
  ThreadPool pool(2);
  std::vector<State> alone, together;
  std::vector<SampleTensor> gradients;
  for (const std::int64_t n : {0, 5, 3 * 8192 + 11, 64, 0, 8192, 1, 0}) {
    const std::int64_t start = n % 2;
    alone.emplace_back(n, start).p.fill_normal(static_cast<std::uint32_t>(n));
    together.push_back(alone.back());
    gradients.emplace_back(DType::bf16, Shape{n}, SampleTensor::Layout{.start = start});
    gradients.back().fill_normal(static_cast<std::uint32_t>(n + 1));
  }
  const auto call = [](State& s, const SampleTensor& g, std::size_t i) {
    return AdamW{.p = s.p.view(),
                 .m = s.m.view(),
                 .v = s.v.view(),
                 .g = g.view(),
                 .grad_scale = {},
                 .options = {.weight_decay = 0.01 * static_cast<double>(i)},
                 .step = 1,
                 .learning_rate = 0.01 * static_cast<double>(i + 1)};
  };
  std::vector<AdamW> calls;
  for (std::size_t i = 0; i < alone.size(); ++i) {
    adamw(call(alone[i], gradients[i], i), support::test_stream(pool));
    calls.push_back(call(together[i], gradients[i], i));
  }
  adamw(calls, support::test_stream(pool));
  for (std::size_t i = 0; i < alone.size(); ++i) {
    EXPECT_EQ(alone[i].p.bytes(), together[i].p.bytes()) << i;
    EXPECT_EQ(alone[i].m.bytes(), together[i].m.bytes()) << i;
    EXPECT_EQ(alone[i].v.bytes(), together[i].v.bytes()) << i;
  }
}

TEST(AdamWTogether, RefusesWhatDoesNotGoTogether) {
  ThreadPool pool(1);
  State a(4), b(4);
  const SampleTensor g(DType::f32, {4}), half(DType::bf16, {4});
  const auto call = [](State& s, const SampleTensor& gradient) {
    return AdamW{.p = s.p.view(),
                 .m = s.m.view(),
                 .v = s.v.view(),
                 .g = gradient.view(),
                 .grad_scale = {},
                 .options = {},
                 .step = 1,
                 .learning_rate = 0.1};
  };
  const auto run = [&](const std::vector<AdamW>& calls) {
    adamw(calls, support::test_stream(pool));
  };
  EXPECT_NO_THROW(run({}));
  EXPECT_NO_THROW(run({call(a, g), call(b, g)}));
  EXPECT_THROW(run({call(a, g), call(b, half)}), Error);
  EXPECT_THROW(run(std::vector<AdamW>(kAdamWTensors + 1, call(a, g))), Error);
}

TEST(AdamWRecorded, TakesStepAndLearningRateFromTheRun) {
  const SampleTensor start = SampleTensor(DType::f32, {2, 9}).fill_normal(1);
  const SampleTensor gradient = SampleTensor(DType::f32, {2, 9}).fill_normal(2);
  const SampleTensor zero(DType::f32, {2, 9});
  RecordedProgram program;
  const Buffer p = program.input("p", start), m = program.input("m", zero);
  const Buffer v = program.input("v", zero), g = program.input("g", gradient);
  adamw(program.pb, {{.p = p, .m = m, .v = v, .g = g, .options = kOptions}}, {});
  EXPECT_EQ(program.instruction(0).reads, (std::vector{p, m, v, g}));
  EXPECT_EQ(program.instruction(0).writes, (std::vector{p, m, v}));
  ref::AdamWState want = {start.values(), zero.values(), zero.values()};
  for (int step = 1; step <= 2; ++step) {
    const double lr = 0.01 * step;
    program.run({.step = step, .learning_rate = lr});
    ref::adamw(want, gradient.values(), lr, 0.9, 0.99, 1e-8, 0.01, step);
  }
  State got(18);
  got.p.fill(program.value(p).values());
  got.m.fill(program.value(m).values());
  got.v.fill(program.value(v).values());
  expect_state_near(got, want, 0.02, 2);
}

}  // namespace
}  // namespace ballast::ops::adamw_test
