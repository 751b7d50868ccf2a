#include "nn/linear_group.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/to_size.h"
#include "ops/copy.h"
#include "ops/fill.h"
#include "ops/kernels/token_quantum.h"
#include "ops/linear/append_adapter.h"
#include "tests/support/recorded_program.h"

namespace ballast::linear_group_test {
namespace {

using support::RecordedProgram;
using support::SampleTensor;

constexpr std::int64_t kRows = 600, kInputs = 24, kOutputs = 32, kRank = 4, kLayers = 3;
constexpr StepValues kStep = {.step = 2, .seed = 5, .first_sample = 3};

enum class Factors { side_by_side, apart, one_missing, appended };

struct Case {
  Factors factors = Factors::side_by_side;
  double dropout = 0;
  std::int64_t chunk = kRows;
  bool keeps_u = true;
  bool grouped = true;  // else the layers one by one
  bool again = false;   // y from forward_again
};

struct Results {
  std::vector<SampleTensor> values;  // y and dx, then the gradients of A and of B
  std::size_t instructions = 0;
};

constexpr std::int64_t kOwn = AppendedAdapter::padded(kRank);

// Each adapter into the row padding of its layer's weight, every A below the first one's.
void append_all(ProgramBuilder& pb, std::vector<AdaptedLinear>& layers) {
  const auto count = static_cast<std::int64_t>(layers.size());
  std::vector<ops::AppendAdapterBuffers> all;
  for (std::int64_t i = 0; i < count; ++i) {
    AdaptedLinear& l = layers[to_size(i)];
    const std::int64_t below = i == 0 ? count * kOwn : 0;
    const Buffer wide = pb.temp(
        "wide", {kOutputs + below, kInputs + AppendedAdapter::room(count * kOwn, DType::f32)},
        DType::f32);
    const Buffer w = pb.columns(pb.rows(wide, 0, kOutputs), 0, kInputs);
    ops::copy(pb, l.weight.weight, w);
    l.weight.weight = w;
    l.appended = {.wide = wide,
                  .columns = count * kOwn,
                  .first = i * kOwn,
                  .own = kOwn,
                  .inputs = kInputs,
                  .outputs = kOutputs};
    all.push_back({.from = l.adapter.b,
                   .to = pb.columns(pb.rows(wide, 0, kOutputs), kInputs, count * kOwn),
                   .column = i * kOwn,
                   .factor = l.adapter.scale});
    const Buffer first = layers[0].appended.wide;
    all.push_back({.from = l.adapter.a,
                   .to = pb.columns(pb.rows(first, kOutputs + i * kOwn, kOwn), 0, kInputs)});
  }
  ops::append_adapter(pb, all);
}

Results run(const Case& c) {
  RecordedProgram p;
  ProgramBuilder& pb = p.pb;
  std::uint32_t seed = 0;
  const auto input = [&](const Shape& shape, double scale = 1) {
    return p.input("input", SampleTensor(DType::f32, shape).fill_normal(++seed, scale));
  };
  Buffer x = input({kRows, kInputs});
  const Buffer dx = pb.temp("dx", {kRows, kInputs}, DType::f32);
  const Buffer all_a = input({kLayers * kRank, kInputs}), all_da = input(pb.shape(all_a), 0);
  std::vector<AdaptedLinear> layers;
  std::vector<Buffer> y, dy, gradients;
  for (std::int64_t i = 0; i < kLayers; ++i) {
    y.push_back(pb.temp("y", {kRows, kOutputs}, DType::f32));
    dy.push_back(input({kRows, kOutputs}));
    AdaptedLinear& l = layers.emplace_back();
    l.weight = {.weight = input({kOutputs, kInputs}), .bias = input({kOutputs})};
    const Buffer b = input({kOutputs, kRank}), db = input({kOutputs, kRank}, 0);
    if (c.factors == Factors::one_missing && i == 1) continue;
    // In the other order they are as good as apart.
    const std::int64_t place = c.factors == Factors::apart ? kLayers - 1 - i : i;
    l.adapter = {.a = pb.rows(all_a, place * kRank, kRank), .b = b, .scale = 0.5};
    l.adapter.dropout = {.probability = c.dropout,
                         .site = ops::random_site("dropout", std::to_string(i), 0)};
    l.adapter_grads = {.da = pb.rows(all_da, place * kRank, kRank), .db = db};
    gradients.insert(gradients.end(), {l.adapter_grads.da, l.adapter_grads.db});
  }
  if (c.factors == Factors::appended) {
    append_all(pb, layers);
    const Buffer wide = AppendedAdapter::temp(pb, "wide", pb.shape(x), DType::f32, kLayers * kOwn);
    ops::copy(pb, x, wide);
    x = wide;
  }
  std::int64_t columns = 0;
  for (const AdaptedLinear& l : layers) columns += l.u_columns(pb);
  const Buffer u = c.keeps_u ? pb.temp("u", {kRows, columns}, DType::f32) : Buffer();
  for (std::int64_t first = 0; first < kRows; first += c.chunk) {
    const std::int64_t count = std::min(c.chunk, kRows - first);
    const auto rows = [&](Buffer b) { return b ? pb.rows(b, first, count) : Buffer(); };
    std::vector<AdaptedLinear> here;
    std::vector<Buffer> y_rows, dy_rows;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      here.push_back(layers[i].at(first, 0));
      y_rows.push_back(rows(y[i]));
      dy_rows.push_back(rows(dy[i]));
    }
    if (c.grouped) {
      const LinearGroup group(pb, here);
      group.forward(pb, rows(x), y_rows, rows(u));
      if (c.again) {
        // What a row had behind it is gone.
        const Buffer fresh = AppendedAdapter::temp(pb, "fresh", {count, kInputs}, DType::f32,
                                                   layers[0].appended.columns);
        ops::copy(pb, rows(x), fresh);
        for (std::size_t i = 0; i < here.size(); ++i) {
          ops::fill(pb, y_rows[i], 0);
          group.forward_again(pb, fresh, i, y_rows[i], rows(u));
        }
      }
      group.backward(pb, rows(x), dy_rows, rows(dx), false, rows(u));
      continue;
    }
    for (std::size_t i = 0; i < here.size(); ++i) here[i].forward(pb, rows(x), y_rows[i]);
    for (std::size_t i = 0; i < here.size(); ++i) {
      here[i].backward(pb, rows(x), dy_rows[i], rows(dx), i > 0);
    }
  }
  p.run(kStep);
  Results r;
  for (const Buffer b : y) r.values.push_back(p.value(b));
  r.values.push_back(p.value(dx));
  for (const Buffer b : gradients) r.values.push_back(p.value(b));
  r.instructions = p.instructions();
  return r;
}

void expect_equal(const Results& a, const Results& b) {
  ASSERT_EQ(a.values.size(), b.values.size());
  for (std::size_t t = 0; t < a.values.size(); ++t) {
    EXPECT_EQ(a.values[t].bytes(), b.values[t].bytes()) << t;
  }
}

TEST(LinearGroup, ComputesWhatItsLayersCompute) {
  for (const Factors factors : {Factors::side_by_side, Factors::apart, Factors::one_missing}) {
    for (const double dropout : {0.0, 0.4}) {
      const Results group = run({.factors = factors, .dropout = dropout});
      const Results single = run({.factors = factors, .dropout = dropout, .grouped = false});
      ASSERT_EQ(group.values.size(), single.values.size());
      for (std::size_t t = 0; t < group.values.size(); ++t) {
        const SampleTensor &got = group.values[t], &want = single.values[t];
        ASSERT_EQ(got.size(), want.size());
        for (std::int64_t i = 0; i < got.size(); ++i) {
          // Sums of at most 600 terms of a few units in f32, in another order.
          ASSERT_NEAR(got[i], want[i], 1e-4 + 1e-5 * std::abs(want[i])) << t << ' ' << i;
        }
      }
    }
  }
}

TEST(LinearGroup, GivesTheSameBitsInChunksAndWithoutItsU) {
  for (const double dropout : {0.0, 0.4}) {
    const Results whole = run({.dropout = dropout});
    expect_equal(run({.dropout = dropout, .chunk = kTokenQuantum}), whole);
    expect_equal(run({.dropout = dropout, .keeps_u = false}), whole);
  }
}

TEST(LinearGroup, InlaidAdaptersComputeTheSame) {
  const Results apart = run({}), appended = run({.factors = Factors::appended});
  ASSERT_EQ(appended.values.size(), apart.values.size());
  for (std::size_t t = 0; t < appended.values.size(); ++t) {
    const SampleTensor &got = appended.values[t], &want = apart.values[t];
    ASSERT_EQ(got.size(), want.size());
    for (std::int64_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], 1e-4 + 1e-5 * std::abs(want[i])) << t << ' ' << i;
    }
  }
  for (const Case& c : {Case{.factors = Factors::appended, .chunk = kTokenQuantum},
                        Case{.factors = Factors::appended, .keeps_u = false},
                        Case{.factors = Factors::appended, .again = true}}) {
    expect_equal(run(c), appended);
  }
}

TEST(LinearGroup, ReadsItsInputOnceForFactorsThatLieSideBySide) {
  // Two products down, two gradients of A and two for dx.
  EXPECT_EQ(run({}).instructions + 6, run({.factors = Factors::apart}).instructions);
}

}  // namespace
}  // namespace ballast::linear_group_test
