#include "ops/linear/lora.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "core/to_size.h"
#include "ops/kernels/token_quantum.h"
#include "tests/ref/lora.h"
#include "tests/support/linear_calls.h"
#include "tests/support/recorded_program.h"

namespace ballast::ops::lora_test {
namespace {

using support::multiplied;
using support::RecordedProgram;
using support::SampleTensor;

constexpr float kScale = 0.75f;

struct Sample {
  std::int64_t rows, inputs, outputs, rank;
  DType type, factor_type;
  SampleTensor x{type, {rows, inputs}}, y{type, {rows, outputs}}, dy{type, {rows, outputs}};
  SampleTensor dx{type, {rows, inputs}};
  SampleTensor a{factor_type, {rank, inputs}}, b{factor_type, {outputs, rank}};
  SampleTensor da{DType::f32, {rank, inputs}}, db{DType::f32, {outputs, rank}};

  Sample(std::int64_t rows, std::int64_t inputs, std::int64_t outputs, std::int64_t rank,
         DType type, DType factor_type = DType::f32)
      : rows(rows),
        inputs(inputs),
        outputs(outputs),
        rank(rank),
        type(type),
        factor_type(factor_type) {
    std::uint32_t seed = 0;
    for (SampleTensor* t : {&x, &y, &dy, &dx, &a, &b, &da, &db}) t->fill_normal(++seed);
  }
  ref::LoraDims dims() const {
    return {to_size(rows), to_size(inputs), to_size(outputs), to_size(rank)};
  }
};

struct Results {
  SampleTensor y, dx, da, db;
  std::size_t instructions;
};

// The sample is the third of its step.
constexpr StepValues kStep = {.step = 4, .seed = 9, .first_sample = 1};
constexpr RandomSite kSite = random_site("dropout", "blocks.2.ffn.0", 1);

struct Wanted {
  bool dx = true;
  bool accumulate = false;  // of dx
  double dropout = 0;
  double hidden = 0, ranks = 0, module = 0;
};

Results run(const Sample& s, int threads, std::int64_t chunk, const Wanted& wanted = {}) {
  RecordedProgram p(threads);
  const Buffer x = p.input("x", s.x), y = p.input("y", s.y), dy = p.input("dy", s.dy);
  const Buffer dx = p.input("dx", s.dx);
  LoraWeight w = {.a = p.input("a", s.a), .b = p.input("b", s.b), .scale = kScale};
  w.dropout = {.probability = wanted.dropout,
               .hidden = wanted.hidden,
               .ranks = wanted.ranks,
               .module = wanted.module,
               .site = kSite};
  const LoraGrads grads = {.da = p.input("da", s.da), .db = p.input("db", s.db)};
  std::int64_t begin = 0;
  do {
    const std::int64_t count = std::min(chunk, s.rows - begin);
    const auto part = [&](Buffer b) { return p.pb.rows(b, begin, count); };
    w.dropout.first_row = begin;
    const LoraOut kept = lora_down(p.pb, part(x), w);
    EXPECT_EQ(p.pb.shape(kept.u), (Shape{count, s.rank}));
    EXPECT_EQ(p.pb.dtype(kept.u), s.type);
    lora_up(p.pb, kept.u, w, part(y));
    const Buffer du = p.pb.temp("du", p.pb.shape(kept.u), s.type);
    lora_du(p.pb, part(dy), w, du);
    lora_dw(p.pb, kept, part(dy), du, w, grads);
    if (wanted.dx) lora_dx(p.pb, du, w, part(dx), wanted.accumulate);
    begin += count;
  } while (begin < s.rows);
  p.run(kStep);
  return {p.value(y), p.value(dx), p.value(grads.da), p.value(grads.db), p.instructions()};
}

// Sums of up to 300 terms of unit size in f32, then one rounding of the result's type.
void expect_close(const SampleTensor& got, const SampleTensor* start,
                  const std::vector<double>& change, double slack) {
  for (std::int64_t i = 0; i < got.size(); ++i) {
    const double want = (start ? (*start)[i] : 0) + change[to_size(i)];
    ASSERT_NEAR(got[i], want, slack + 2 * support::rounding(got.dtype()) * std::abs(want)) << i;
  }
}

struct Changes {
  std::vector<double> y, dx, da, db;
  double slack = 2e-3;
};

Changes expected_changes(const Sample& s, const ref::LoraDropout& drop) {
  const std::vector<double> x = s.x.values(), a = s.a.values(), b = s.b.values();
  const std::vector<double> dy = s.dy.values();
  if (s.type == DType::f32) {
    ref::LoraGradients g = ref::lora_backward(s.dims(), x, a, b, kScale, dy, drop);
    return {ref::lora(s.dims(), x, a, b, kScale, drop), std::move(g.dx), std::move(g.da),
            std::move(g.db)};
  }
  // u and du are rounded to bf16, and the GPU rounds the other operands where one is bf16.
  const DType t = s.type;
  const auto rounded = [](std::vector<double> v) {
    for (double& e : v) e = support::bf16_value(support::bf16_bits(static_cast<float>(e)));
    return v;
  };
  const auto scaled = [](std::vector<double> v) {
    for (double& e : v) e *= kScale;
    return v;
  };
  const ref::LoraDims d = s.dims();
  const ref::LinearDims down = {d.rows, d.inputs, d.rank}, up = {d.rows, d.rank, d.outputs};
  const std::vector<double> kept = ref::dropout(x, drop.probability, drop.source);
  const std::vector<double> u =
      rounded(ref::linear(down, multiplied(kept, {t}), multiplied(a, {t}), {}));
  const std::vector<double> du =
      rounded(scaled(ref::linear_dx(up, multiplied(dy, {t}), multiplied(b, {t}))));
  const std::vector<double> dkept = ref::linear_dx(down, du, multiplied(a, {t}));
  Changes c = {.y = scaled(ref::linear(up, u, multiplied(b, {t}), {})),
               .dx = ref::dropout(dkept, drop.probability, drop.source),
               .da = ref::linear_dw(down, multiplied(kept, {t}), du).dw,
               .db = scaled(ref::linear_dw(up, u, multiplied(dy, {t})).dw)};
  // A rounding of u or du, up to 20 here, may fall the other way; what it meets is below 4.
  c.slack += 0x1p-7 * 20 * 4;
  return c;
}

TEST(LoraRef, BackwardMatchesFiniteDifferences) {
  const ref::LoraDims d = {3, 4, 5, 2};
  const auto make = [](std::int64_t n, std::uint32_t seed) {
    return SampleTensor(DType::f64, {n}).fill_normal(seed).values();
  };
  std::vector<double> x = make(12, 1), a = make(8, 2), b = make(10, 3);
  const std::vector<double> dy = make(15, 4);
  const ref::LoraDropout drop = {0.5, random_source(1, "dropout", 1, "a"), {2, 0, 0, 1, 3, 2}};
  const auto loss = [&] {
    double sum = 0;
    const std::vector<double> y = ref::lora(d, x, a, b, kScale, drop);
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
    return sum;
  };
  const ref::LoraGradients g = ref::lora_backward(d, x, a, b, kScale, dy, drop);
  const auto expect_slope = [&](std::vector<double>& v, const std::vector<double>& grad) {
    for (std::size_t i = 0; i < v.size(); ++i) {
      const double old = v[i], h = 1e-4;
      v[i] = old + h;
      const double up = loss();
      v[i] = old - h;
      const double down = loss();
      v[i] = old;
      EXPECT_NEAR((up - down) / (2 * h), grad[i], 1e-8);  // linear in each factor by itself
    }
  };
  expect_slope(x, g.dx);
  expect_slope(a, g.da);
  expect_slope(b, g.db);
}

class LoraOfTypes : public testing::TestWithParam<std::tuple<DType, DType, double>> {};

TEST_P(LoraOfTypes, MatchesReference) {
  const auto [type, factor_type, dropout] = GetParam();
  const ref::LoraDropout drop = {dropout, kSite.at(kStep)};
  for (const std::int64_t rank : {1, 4, 16}) {
    const Sample s(270, 21, 33, rank, type, factor_type);
    const Changes want = expected_changes(s, drop);
    for (const bool accumulate : {false, true}) {
      const Results r = run(s, 2, s.rows, {.accumulate = accumulate, .dropout = dropout});
      expect_close(r.y, nullptr, want.y, want.slack);
      expect_close(r.dx, accumulate ? &s.dx : nullptr, want.dx, want.slack);
      expect_close(r.da, &s.da, want.da, want.slack);
      expect_close(r.db, &s.db, want.db, want.slack);
    }
  }
}

TEST_P(LoraOfTypes, GivesTheSameBitsInChunksAndThreads) {
  const auto [type, factor_type, dropout] = GetParam();
  const Sample s(700, 40, 50, 8, type, factor_type);
  const Results whole = run(s, 1, s.rows, {.dropout = dropout});
  for (const std::int64_t chunk : {kTokenQuantum, 2 * kTokenQuantum, s.rows}) {
    for (const int threads : {2, 3}) {
      const Results r = run(s, threads, chunk, {.dropout = dropout});
      EXPECT_EQ(r.y.bytes(), whole.y.bytes());
      EXPECT_EQ(r.dx.bytes(), whole.dx.bytes());
      EXPECT_EQ(r.da.bytes(), whole.da.bytes());
      EXPECT_EQ(r.db.bytes(), whole.db.bytes());
    }
  }
}

// A half is dropped because twice a bf16 is exact: the tolerance stays that of the products.
INSTANTIATE_TEST_SUITE_P(Types, LoraOfTypes,
                         testing::Combine(testing::Values(DType::f32, DType::bf16),
                                          testing::Values(DType::f32, DType::bf16),
                                          testing::Values(0.0, 0.5)));

// What stays of ones [rows, rank].
std::vector<double> stays(const Sample& s, double p, std::string_view stream, bool by_column) {
  RandomSite site = kSite;
  site.stream = fold(hash_of(stream));
  const auto width = to_size(s.rank), all = to_size(s.rows) * width;
  std::vector<double> f =
      ref::dropout(std::vector<double>(by_column ? width : all, 1.0), p, site.at(kStep));
  f.resize(all);
  for (std::size_t i = by_column ? width : all; i < all; ++i) f[i] = f[i % width];
  return f;
}

TEST(LoraDrops, OfValuesAndOfRanksMatchReference) {
  const Sample s(270, 21, 33, 16, DType::f32);
  const auto expect_matches = [&](const Wanted& wanted, std::vector<double> factors) {
    const Changes want = expected_changes(s, {.hidden = std::move(factors)});
    const Results r = run(s, 2, s.rows, wanted), cut = run(s, 1, kTokenQuantum, wanted);
    expect_close(r.y, nullptr, want.y, want.slack);
    expect_close(r.dx, nullptr, want.dx, want.slack);
    expect_close(r.da, &s.da, want.da, want.slack);
    expect_close(r.db, &s.db, want.db, want.slack);
    EXPECT_EQ(r.y.bytes(), cut.y.bytes());
    EXPECT_EQ(r.da.bytes(), cut.da.bytes());
  };
  expect_matches({.hidden = 0.5}, stays(s, 0.5, "hidden dropout", false));
  const std::vector<double> ranks = stays(s, 0.5, "rank dropout", true);
  const auto gone = std::ranges::count(std::span(ranks).first(16), 0.0);
  EXPECT_TRUE(gone > 0 && gone < 16) << gone;
  expect_matches({.ranks = 0.5}, ranks);
}

TEST(LoraDrops, OfAWholeAdapterLeaveItAsItIsOrNothing) {
  for (const DType type : {DType::f32, DType::bf16}) {
    const Sample s(300, 21, 33, 4, type);
    const Results without = run(s, 2, s.rows);
    const Results kept = run(s, 2, s.rows, {.module = 1e-9});
    EXPECT_EQ(kept.y.bytes(), without.y.bytes());
    EXPECT_EQ(kept.dx.bytes(), without.dx.bytes());
    EXPECT_EQ(kept.da.bytes(), without.da.bytes());
    const Results dropped = run(s, 2, s.rows, {.module = 1 - 1e-9});
    for (std::int64_t i = 0; i < dropped.y.size(); ++i) ASSERT_EQ(dropped.y[i], 0);
    for (std::int64_t i = 0; i < dropped.dx.size(); ++i) ASSERT_EQ(dropped.dx[i], 0);
    EXPECT_EQ(dropped.da.bytes(), s.da.bytes());
    EXPECT_EQ(dropped.db.bytes(), s.db.bytes());
  }
}

TEST(Lora, RecordsNothingForADropoutOfZero) {
  const Sample s(5, 6, 7, 2, DType::f32);
  const Results without = run(s, 1, 5), with = run(s, 1, 5, {.dropout = 0.5});
  EXPECT_EQ(without.instructions, 6u);
  EXPECT_EQ(with.instructions, 8u);  // of x, and of its gradient
  EXPECT_NE(without.y.bytes(), with.y.bytes());
}

TEST(Lora, LeavesOutTheInputGradientThatNobodyWants) {
  const Sample s(5, 6, 7, 2, DType::f32);
  const Results with = run(s, 1, 5), without = run(s, 1, 5, {.dx = false});
  EXPECT_EQ(without.instructions + 1, with.instructions);
  EXPECT_EQ(without.dx.bytes(), s.dx.bytes());
  EXPECT_EQ(without.da.bytes(), with.da.bytes());
}

TEST(Lora, AcceptsNoRows) {
  const Sample s(0, 6, 7, 2, DType::bf16);
  const Results r = run(s, 2, 256);
  EXPECT_EQ(r.da.bytes(), s.da.bytes());
  EXPECT_EQ(r.db.bytes(), s.db.bytes());
}

TEST(Lora, RefusesFactorsOfDifferentRankAndOtherTypes) {
  RecordedProgram p;
  const Buffer x = p.input("x", SampleTensor(DType::f32, {3, 6}));
  const Buffer y = p.input("y", SampleTensor(DType::f32, {3, 7}));
  const LoraWeight w = {.a = p.input("a", SampleTensor(DType::f32, {2, 6})),
                        .b = p.input("b", SampleTensor(DType::f32, {7, 3}))};
  EXPECT_THROW(lora_up(p.pb, lora_down(p.pb, x, w).u, w, y), Error);
  const LoraWeight half = {.a = p.input("a", SampleTensor(DType::f16, {2, 6})),
                           .b = p.input("b", SampleTensor(DType::f32, {7, 2}))};
  EXPECT_THROW(lora_down(p.pb, x, half), Error);
}

}  // namespace
}  // namespace ballast::ops::lora_test
