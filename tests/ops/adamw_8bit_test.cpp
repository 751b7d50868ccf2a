#include "ops/adamw_8bit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/to_size.h"
#include "tests/ref/adamw_8bit.h"
#include "tests/support/dynamic_map_cases.h"
#include "tests/support/recorded_program.h"
#include "tests/support/test_device.h"

namespace ballast::ops::adamw_8bit_test {
namespace {

using support::code_of;
using support::RecordedProgram;
using support::SampleTensor;

constexpr float kInf = std::numeric_limits<float>::infinity();

struct State {
  SampleTensor p, m, v, m_absmax, v_absmax, shift;
  State(std::int64_t n, DType type, DType moments = DType::u8, std::int64_t start = 0)
      : p(type, {n}, {.start = start}),
        m(moments, {n}, {.start = start}),
        v(moments, {n}, {.start = start}),
        m_absmax(DType::f32, {(n + 255) / 256}, {.start = start}),
        v_absmax(DType::f32, {(n + 255) / 256}, {.start = start}),
        shift(type, {n}, {.start = start}) {}

  AdamW8bit step(const SampleTensor& g, int k, double lr, bool kahan = false,
                 double weight_decay = 0.01) {
    return {.p = p.view(),
            .m = m.view(),
            .v = v.view(),
            .m_absmax = m_absmax.view(),
            .v_absmax = v_absmax.view(),
            .shift = kahan ? shift.view() : TensorView(),
            .g = g.view(),
            .grad_scale = {},
            .options = {.weight_decay = weight_decay},
            .stabilize = false,
            .step = k,
            .learning_rate = lr};
  }
};

SampleTensor gradient(std::int64_t n, int k, DType type = DType::f32, std::int64_t start = 1) {
  SampleTensor g(type, {n}, {.start = start});
  g.fill_normal(static_cast<std::uint32_t>(100 + k));
  for (std::int64_t i = 0; i < n; i += 7) g.set(i, 1e-5 * g[i]);  // decades apart in one block
  for (std::int64_t i = 3; i < n; i += 50) g.set(i, 0);
  return g;
}

std::vector<int> codes(const SampleTensor& t) {
  std::vector<int> c;
  for (const double x : t.values()) c.push_back(static_cast<int>(x));
  return c;
}
std::vector<float> floats(const SampleTensor& t) {
  std::vector<float> c;
  for (const double x : t.values()) c.push_back(static_cast<float>(x));
  return c;
}

struct Case {
  DType type;
  bool kahan;
};
class AdamW8bitSteps : public testing::TestWithParam<Case> {};

// Each of ten steps from where the step before ended, so that a code which falls on the other side
// of a midpoint in f64 does not add up.
TEST_P(AdamW8bitSteps, MatchTheReference) {
  const auto [type, kahan] = GetParam();
  const std::int64_t n = 3 * 256 + 21;
  ThreadPool pool(2);
  State s(n, type, DType::u8, 1);
  s.p.fill_normal(1);
  ref::AdamW8bitState want(s.p.values(), 256);
  const double lr = 1e-3;
  int same_codes = 0, same_p = 0;
  for (int k = 1; k <= 10; ++k) {
    const SampleTensor g = gradient(n, k, type);
    std::vector<double> before = want.p;
    for (std::size_t i = 0; i < before.size(); ++i) before[i] += want.shift[i];
    adamw_8bit(s.step(g, k, lr, kahan), support::test_stream(pool));
    ref::adamw_8bit(want, g.values(), {.lr = lr, .kahan = kahan, .type = type}, k);
    for (std::int64_t i = 0; i < n; ++i) {
      const auto at = to_size(i);
      const int m = static_cast<int>(s.m[i]), v = static_cast<int>(s.v[i]);
      ASSERT_LE(std::abs(m - want.m[at]), 1) << i;
      ASSERT_LE(std::abs(v - want.v[at]), 1) << i;
      same_codes += (m == want.m[at]) + (v == want.v[at]);
      same_p += s.p[i] == want.p[at];
      // p is rounded twice, by the step and by the decay; each may fall one place (twice the
      // relative rounding at most) beside the reference's. A v that became the code 0 leaves little
      // to divide by, so some steps are hundreds of lr.
      const double moved = std::abs(want.p[at] + want.shift[at] - before[at]);
      const double rounding = support::rounding(type);
      ASSERT_NEAR(s.p[i], want.p[at], 4.1 * rounding * (std::abs(want.p[at]) + moved + 0.01))
          << i << " step " << k;
      if (kahan) {
        // In f32 all of m's and v's roundings are seen, in bf16 that of the step.
        const double roundings = type == DType::f32 ? 16 : 4;
        ASSERT_NEAR(s.p[i] + s.shift[i], want.p[at] + want.shift[at],
                    roundings * rounding * (moved + rounding * std::abs(want.p[at]) + lr))
            << i << " step " << k;
      }
    }
    for (std::int64_t b = 0; b < 4; ++b) {
      const auto at = to_size(b);
      ASSERT_NEAR(s.m_absmax[b], want.m_absmax[at], 1e-6 * want.m_absmax[at]);
      ASSERT_NEAR(s.v_absmax[b], want.v_absmax[at], 1e-6 * want.v_absmax[at]);
    }
    want.p = s.p.values();
    want.shift = s.shift.values();
    want.m = codes(s.m);
    want.v = codes(s.v);
    want.m_absmax = floats(s.m_absmax);
    want.v_absmax = floats(s.v_absmax);
  }
  EXPECT_GT(same_codes, 2 * 10 * n * 995 / 1000);
  EXPECT_GT(same_p, 10 * n * (type == DType::bf16 ? 98 : 50) / 100);
  EXPECT_TRUE(s.p.padding_untouched() && s.m.padding_untouched() && s.v.padding_untouched() &&
              s.m_absmax.padding_untouched() && s.v_absmax.padding_untouched());
}

INSTANTIATE_TEST_SUITE_P(Types, AdamW8bitSteps,
                         testing::Values(Case{DType::f32, false}, Case{DType::bf16, false},
                                         Case{DType::f32, true}, Case{DType::bf16, true}));

// Moments that are the gradient and its square: every one becomes the code of its share of the
// largest, which is the scale, whether that is ordinary or so small that shares are hard to
// compute, or so large that the share of a negative number becomes a zero.
TEST(AdamW8bitCodes, AreThoseOfTheMapsForAllNumbers) {
  ThreadPool pool(1);
  for (const float scale : {1.0f, 0x1p-30f, 0x1p-90f, 0x1p20f}) {
    std::vector<double> values;
    for (const float x : support::cases_of(signed_map())) {
      if (values.size() % 256 == 0) values.insert(values.end(), {scale, -0x1p-149});
      if (std::abs(x) <= 1) values.push_back(x * scale);
    }
    const auto n = static_cast<std::int64_t>(values.size());
    State s(n, DType::f32);
    SampleTensor g(DType::f32, {n});
    g.fill(values);
    AdamW8bit a = s.step(g, 1, 1e-3);
    a.options.beta1 = a.options.beta2 = 0;
    adamw_8bit(a, support::test_stream(pool));
    for (std::int64_t i = 0; i < n; ++i) {
      const auto x = static_cast<float>(g[i]);
      const float square = x * x, largest = scale * scale;
      ASSERT_EQ(s.m[i], code_of(signed_map(), x / scale)) << x;
      ASSERT_EQ(s.v[i], code_of(unsigned_map(), largest > 0 ? square / largest : 0.0f)) << x;
    }
  }
}

TEST(AdamW8bitRun, StaysWithTheReferenceForTenSteps) {
  const std::int64_t n = 4096;
  ThreadPool pool(2);
  State s(n, DType::f32);
  s.p.fill_normal(1);
  ref::AdamW8bitState want(s.p.values(), 256);
  double moved = 0, off = 0;
  const std::vector<double> start = s.p.values();
  for (int k = 1; k <= 10; ++k) {
    const SampleTensor g = gradient(n, k);
    adamw_8bit(s.step(g, k, 1e-3), support::test_stream(pool));
    ref::adamw_8bit(want, g.values(), {.lr = 1e-3}, k);
  }
  for (std::int64_t i = 0; i < n; ++i) {
    moved += std::abs(s.p[i] - start[to_size(i)]);
    off += std::abs(s.p[i] - want.p[to_size(i)]);
  }
  EXPECT_GT(moved / n, 1e-3);
  EXPECT_LT(off, 1e-4 * moved) << "a code in a thousand may be its neighbour";
}

TEST(AdamW8bitRun, FirstStepMovesByTheLearningRateAndDecaysAfterwards) {
  ThreadPool pool(1);
  State s(2, DType::f32);
  s.p.fill({1, 1});
  SampleTensor g(DType::f32, {2});
  g.fill({0.5, 0});
  adamw_8bit(s.step(g, 1, 0.25, false, 0.5), support::test_stream(pool));
  EXPECT_NEAR(s.p[0], (1 - 0.25) * (1 - 0.125), 1e-6);
  EXPECT_NEAR(s.p[1], 1 - 0.125, 1e-7);
  EXPECT_EQ(codes(s.m), (std::vector{255, 127}));
  EXPECT_EQ(codes(s.v), (std::vector{255, 0}));
  EXPECT_NEAR(s.m_absmax[0], 0.05, 1e-8);
  EXPECT_NEAR(s.v_absmax[0], 0.00025, 1e-10);
}

TEST(AdamW8bitRun, SkipsGradientsThatAreNoNumbers) {
  ThreadPool pool(1);
  for (const bool kahan : {false, true}) {
    for (const DType moments : {DType::u8, DType::f32}) {
      State s(300, DType::bf16, moments);
      s.p.fill_normal(1);
      adamw_8bit(s.step(gradient(300, 1), 1, 1e-2, kahan), support::test_stream(pool));
      SampleTensor bad = gradient(300, 2);
      bad.set(5, NAN);
      bad.set(6, kInf);
      bad.set(7, -kInf);
      bad.set(8, 1e30);  // its square is infinite
      const std::vector<double> before = s.p.values(), shift = s.shift.values();
      adamw_8bit(s.step(bad, 2, 1e-2, kahan), support::test_stream(pool));
      for (const std::int64_t i : {5, 6, 7, 8}) {
        const auto at = to_size(i);
        EXPECT_EQ(s.p[i] + s.shift[i], before[at] + shift[at]);
        EXPECT_EQ(s.m[i], moments == DType::u8 ? 127 : 0);
        EXPECT_EQ(s.v[i], 0);
      }
      for (std::int64_t i = 0; i < 300; ++i) EXPECT_TRUE(std::isfinite(s.p[i])) << i;
      EXPECT_NE(s.p[9] + s.shift[9], before[9] + shift[9]);
      EXPECT_TRUE(std::isfinite(s.m_absmax[0]) && std::isfinite(s.v_absmax[1]));
    }
  }
}

TEST(AdamW8bitRun, F32MomentsGiveAdamWithDecayAfterTheStep) {
  ThreadPool pool(1);
  const std::int64_t n = 300;
  State s(n, DType::f32, DType::f32);
  s.p.fill_normal(1);
  std::vector<double> p = s.p.values(), m(n), v(n);
  for (int k = 1; k <= 4; ++k) {
    const SampleTensor g = gradient(n, k);
    AdamW8bit step = s.step(g, k, 1e-2);
    step.m_absmax = step.v_absmax = {};
    adamw_8bit(step, support::test_stream(pool));
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double x = g[static_cast<std::int64_t>(i)];
      m[i] = 0.9 * m[i] + 0.1 * x;
      v[i] = 0.999 * v[i] + 0.001 * x * x;
      const double hat = std::sqrt(v[i] / (1 - std::pow(0.999, k))) + 1e-8;
      p[i] = (p[i] - 1e-2 * m[i] / (1 - std::pow(0.9, k)) / hat) * (1 - 1e-4);
    }
  }
  for (std::int64_t i = 0; i < n; ++i) {
    EXPECT_NEAR(s.p[i], p[to_size(i)], 4e-7 * (1 + std::abs(s.p[i]))) << i;
  }
}

TEST(AdamW8bitKahan, RecoversTinyUpdatesAndLeavesDecayWithoutEffect) {
  ThreadPool pool(1);
  const std::int64_t n = 256;
  SampleTensor g(DType::bf16, {n});
  for (std::int64_t i = 0; i < n; ++i) g.set(i, 3);
  double end[3] = {};
  for (const int run : {0, 1, 2}) {
    State s(n, DType::bf16);
    for (std::int64_t i = 0; i < n; ++i) s.p.set(i, 1);
    for (int k = 1; k <= 100; ++k) {
      adamw_8bit(s.step(g, k, 1e-4, run > 0, run == 2 ? 10 : 0), support::test_stream(pool));
    }
    end[run] = s.p[17];
  }
  EXPECT_EQ(end[0], 1) << "plain bf16 loses every step";
  EXPECT_NEAR(end[1], 0.99, 0x1p-9);
  EXPECT_NEAR(end[2], 0.99, 0x1p-8) << "decoupled decay would have brought it to 0.89";
}

TEST(AdamW8bitKahan, StabilizeDividesTheRateByTheRmsOverRawCodes) {
  ThreadPool pool(2);
  const std::int64_t n = 512;
  State plain(n, DType::f32), stable(n, DType::f32);
  const SampleTensor first = gradient(n, 1);
  adamw_8bit(plain.step(first, 1, 1e-2, true, 0), support::test_stream(pool));
  adamw_8bit(stable.step(first, 1, 1e-2, true, 0), support::test_stream(pool));
  SampleTensor g(DType::f32, {n});
  double mean = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    g.set(i, 100.0 + static_cast<double>(i));
    mean += g[i] * g[i] / std::max(plain.v[i], 1e-16) / static_cast<double>(n);
  }
  const std::vector<double> before = plain.p.values();
  AdamW8bit step = stable.step(g, 2, 1e-2, true, 0);
  step.stabilize = true;
  adamw_8bit(step, support::test_stream(pool));
  adamw_8bit(plain.step(g, 2, 1e-2 / std::sqrt(mean), true, 0), support::test_stream(pool));
  EXPECT_GT(mean, 2);
  EXPECT_NE(plain.p.values(), before);
  for (std::int64_t i = 0; i < n; ++i) EXPECT_NEAR(stable.p[i], plain.p[i], 1e-8) << i;
}

TEST(AdamW8bitBits, DependNeitherOnThreadsNorOnCutsAtBlocks) {
  const std::int64_t n = 16384 + 619;
  const SampleTensor apart = gradient(n, 1, DType::bf16), aligned = gradient(n, 1, DType::bf16, 0);
  for (const int form : {0, 1, 2, 3}) {
    const bool kahan_form = form == 1;
    const auto prepare = [&](State& s, int k, const SampleTensor& g) {
      AdamW8bit step = s.step(g, k, 3e-3, kahan_form);
      if (form == 2) {
        step.rounding = {.rounding = UpdateRounding::stochastic,
                         .random = random_source(7, "update", k, "w")};
      }
      if (form == 3) {
        step.rounding = {.rounding = UpdateRounding::kahan, .carry = s.shift.view()};
      }
      return step;
    };
    std::vector<double> want, want_m;
    for (const int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      State s(n, DType::bf16, DType::u8, threads);
      s.p.fill_normal(1);
      for (int k = 1; k <= 3; ++k) adamw_8bit(prepare(s, k, apart), support::test_stream(pool));
      if (want.empty()) want = s.p.values(), want_m = s.m.values();
      ASSERT_TRUE(s.p.values() == want && s.m.values() == want_m);
    }
    ThreadPool pool(2);
    State s(n, DType::bf16);
    s.p.fill_normal(1);
    for (int k = 1; k <= 3; ++k) {
      const AdamW8bit whole = prepare(s, k, aligned);
      for (std::int64_t first = 0, count = 256; first < n; first += count, count = 11 * 256) {
        count = std::min(count, n - first);
        AdamW8bit part = whole;
        const auto cut = [&](auto& t) { t = t ? t.rows(first, count) : t; };
        const auto cut_blocks = [&](auto& t) { t = t.rows(first / 256, (count + 255) / 256); };
        cut(part.p), cut(part.m), cut(part.v), cut(part.shift), cut(part.g);
        cut(part.rounding.carry);
        cut_blocks(part.m_absmax), cut_blocks(part.v_absmax);
        part.rounding.first_element = first;
        adamw_8bit(part, support::test_stream(pool));
      }
    }
    EXPECT_TRUE(s.p.values() == want && s.m.values() == want_m) << form;
  }
}

// A GPU takes several blocks of states in a row where there are many.
TEST(AdamW8bitBits, DependNotOnTheirNumber) {
  const std::int64_t n = 420 * 256 + 77, half = 200 * 256;
  ThreadPool pool(2);
  State whole(n, DType::bf16), halves(n, DType::bf16);
  const SampleTensor g = gradient(n, 1, DType::bf16, 0);
  for (State* s : {&whole, &halves}) {
    s->p.fill_normal(1);
    AdamW8bit a = s->step(g, 1, 3e-3);
    a.rounding = {.rounding = UpdateRounding::stochastic,
                  .random = random_source(7, "update", 1, "w")};
    if (s == &whole) {
      adamw_8bit(a, support::test_stream(pool));
      continue;
    }
    for (const std::int64_t first : {std::int64_t{0}, half}) {
      AdamW8bit part = a;
      const std::int64_t count = first == 0 ? half : n - half;
      for (TensorView* t : {&part.p, &part.m, &part.v}) *t = t->rows(first, count);
      for (TensorView* t : {&part.m_absmax, &part.v_absmax}) {
        *t = t->rows(first / 256, (count + 255) / 256);
      }
      part.g = part.g.rows(first, count);
      part.rounding.first_element = first;
      adamw_8bit(part, support::test_stream(pool));
    }
  }
  EXPECT_TRUE(whole.p.bytes() == halves.p.bytes() && whole.m.bytes() == halves.m.bytes() &&
              whole.v.bytes() == halves.v.bytes() &&
              whole.m_absmax.bytes() == halves.m_absmax.bytes() &&
              whole.v_absmax.bytes() == halves.v_absmax.bytes());
}

// Tensors with and without whole blocks, with codes and with plain moments, one of them empty.
TEST(AdamW8bitBits, AreThoseOfEachTensorAlone) {
  ThreadPool pool(2);
  const std::int64_t sizes[] = {700, 0, 256, 5000};
  std::vector<State> alone, together;
  std::vector<SampleTensor> g;
  for (const std::int64_t n : sizes) {
    const DType moments = n == 700 ? DType::f32 : DType::u8;
    for (auto* states : {&alone, &together}) {
      states->emplace_back(n, DType::bf16, moments, n % 3);
      states->back().p.fill_normal(static_cast<std::uint32_t>(n));
    }
    g.push_back(gradient(n, 1));
  }
  for (int k = 1; k <= 2; ++k) {
    std::vector<AdamW8bit> steps;
    for (std::size_t t = 0; t < std::size(sizes); ++t) {
      const double lr = 1e-3 * static_cast<double>(t + 1), decay = t == 3 ? 0 : 0.01;
      const auto step = [&](State& s) {
        AdamW8bit a = s.step(g[t], k, lr, false, decay);
        a.rounding = {.rounding = UpdateRounding::stochastic,
                      .random = random_source(7, "update", k, t == 0 ? "a" : "b")};
        if (a.m.dtype == DType::f32) a.m_absmax = a.v_absmax = {};
        return a;
      };
      adamw_8bit(step(alone[t]), support::test_stream(pool));
      steps.push_back(step(together[t]));
    }
    adamw_8bit(steps, support::test_stream(pool));
  }
  for (std::size_t t = 0; t < std::size(sizes); ++t) {
    EXPECT_TRUE(alone[t].p.bytes() == together[t].p.bytes()) << sizes[t];
    EXPECT_TRUE(alone[t].m.bytes() == together[t].m.bytes()) << sizes[t];
    EXPECT_TRUE(alone[t].v_absmax.bytes() == together[t].v_absmax.bytes()) << sizes[t];
  }
}

// A moment that is zero, tiny or not a number changes the way its seven neighbours are computed.
TEST(AdamW8bitBits, AreThoseOfAnyNeighbours) {
  ThreadPool pool(1);
  const std::int64_t n = 512;
  for (const double odd : {0.0, -0.0, 1e-30, 1e18, static_cast<double>(NAN)}) {
    State plain(n, DType::f32, DType::f32), other(n, DType::f32, DType::f32);
    SampleTensor g(DType::f32, {n});
    g.fill_normal(3);
    for (State* s : {&plain, &other}) {
      s->p.fill_normal(1);
      if (s == &other) {
        for (std::int64_t i = 5; i < n; i += 8) g.set(i, odd);
      }
      AdamW8bit a = s->step(g, 1, 1e-2);
      a.m_absmax = a.v_absmax = {};
      adamw_8bit(a, support::test_stream(pool));
    }
    for (std::int64_t i = 0; i < n; ++i) {
      if (i % 8 == 5) continue;
      ASSERT_EQ(plain.p[i], other.p[i]) << i << " beside " << odd;
      ASSERT_EQ(plain.m[i], other.m[i]) << i << " beside " << odd;
    }
  }
}

TEST(AdamW8bitChecks, RefuseWhatDoesNotFit) {
  ThreadPool pool(1);
  State s(300, DType::bf16);
  const SampleTensor g = gradient(300, 1), other = gradient(301, 1);
  const auto refused = [&](auto&& change) {
    AdamW8bit step = s.step(g, 1, 0.1, true);
    change(step);
    EXPECT_THROW(adamw_8bit(step, support::test_stream(pool)), Error);
  };
  EXPECT_NO_THROW(adamw_8bit(s.step(g, 1, 0.1, true), support::test_stream(pool)));
  refused([&](AdamW8bit& a) { a.step = 0; });
  refused([&](AdamW8bit& a) { a.g = other.view(); });
  refused([&](AdamW8bit& a) { a.m_absmax = {}; });
  refused([&](AdamW8bit& a) { a.v_absmax = a.v_absmax.rows(0, 1); });
  refused([&](AdamW8bit& a) { a.m = a.shift; });
  refused([&](AdamW8bit& a) { a.shift = a.shift.rows(0, 299); });
}

TEST(AdamW8bitRecorded, TakesStepAndLearningRateFromTheRun) {
  const std::int64_t n = 500;
  State s(n, DType::bf16);
  s.p.fill_normal(1);
  const SampleTensor g = gradient(n, 1);
  RecordedProgram program;
  const AdamW8bitBuffers on = {
      .p = program.input("p", s.p),
      .m = program.input("m", s.m),
      .m_absmax = program.input("m_absmax", s.m_absmax),
      .v = program.input("v", s.v),
      .v_absmax = program.input("v_absmax", s.v_absmax),
      .shift = program.input("shift", s.shift),
      .g = program.input("g", SampleTensor(DType::f32, {n}).fill(g.values())),
      .options = {.weight_decay = 0.01}};
  adamw_8bit(program.pb, {on}, {});
  ThreadPool pool(1);
  for (int k = 1; k <= 2; ++k) {
    program.run({.step = k, .learning_rate = 0.01 * k});
    adamw_8bit(s.step(g, k, 0.01 * k, true), support::test_stream(pool));
  }
  EXPECT_EQ(program.value(on.p).values(), s.p.values());
  EXPECT_EQ(program.value(on.m).values(), s.m.values());
  EXPECT_EQ(program.value(on.v_absmax).values(), s.v_absmax.values());
  EXPECT_EQ(program.value(on.shift).values(), s.shift.values());
}

}  // namespace
}  // namespace ballast::ops::adamw_8bit_test
