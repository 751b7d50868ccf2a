#include "nn/adapted_linear.h"

#include <gtest/gtest.h>

#include "core/to_size.h"
#include "ops/copy.h"
#include "ops/gelu.h"
#include "ops/kernels/token_quantum.h"
#include "ops/linear/append_adapter.h"
#include "tests/ref/lora.h"
#include "tests/support/recorded_program.h"

namespace ballast {
namespace {

using support::RecordedProgram;
using support::SampleTensor;

constexpr std::int64_t kRows = 600, kInputs = 20, kOutputs = 30, kRank = 4;
constexpr StepValues kStep = {.step = 2, .seed = 5, .first_sample = 3};

struct Results {
  SampleTensor y, dx, da, db;
};

// The adapter in the row padding of a weight of zeros, as much of it as is multiplied.
AppendedAdapter appended(RecordedProgram& p, Buffer a, Buffer b, float scale) {
  constexpr std::int64_t kOwn = AppendedAdapter::padded(kRank);
  const std::int64_t columns = kInputs + AppendedAdapter::room(kOwn, DType::f32);
  AppendedAdapter i = {
      .wide = p.input("wide", SampleTensor(DType::f32, {kOutputs + kOwn, columns})),
      .columns = kOwn,
      .first = 0,
      .own = kOwn,
      .inputs = kInputs,
      .outputs = kOutputs};
  ops::append_adapter(
      p.pb, {{.from = b, .to = i.up(p.pb), .factor = scale}, {.from = a, .to = i.down(p.pb)}});
  return i;
}

// y = W x + s B A dropout(x) and its backward pass, chunk by chunk, for sample 1 of the program.
Results run(std::int64_t chunk, double dropout, bool keeps_u = false, bool adapter_copies = false) {
  RecordedProgram p;
  std::uint32_t seed = 0;
  const auto input = [&](const char* name, const Shape& shape, double scale = 1) {
    return p.input(name, SampleTensor(DType::f32, shape).fill_normal(++seed, scale));
  };
  const Buffer given_x = input("x", {kRows, kInputs}), given_dy = input("dy", {kRows, kOutputs});
  // With room for u and du, where these are wanted.
  const auto with_room = [&](Buffer from) {
    if (!adapter_copies) return from;
    const Buffer to = AppendedAdapter::temp(p.pb, "wide", p.pb.shape(from), DType::f32,
                                            AppendedAdapter::padded(kRank));
    ops::copy(p.pb, from, to);
    return to;
  };
  const Buffer x = with_room(given_x), dy = with_room(given_dy);
  const Buffer y = p.pb.temp("y", {kRows, kOutputs}, DType::f32);
  const Buffer dx = p.pb.temp("dx", {kRows, kInputs}, DType::f32);
  AdaptedLinear l;
  l.weight = {.weight = input("w", {kOutputs, kInputs}, 0)};  // the adapter's part alone
  l.adapter = {.a = input("a", {kRank, kInputs}), .b = input("b", {kOutputs, kRank}), .scale = 0.5};
  l.adapter.dropout = {.probability = dropout, .site = ops::random_site("dropout", "layer", 0)};
  l.adapter_grads = {.da = input("da", {kRank, kInputs}, 0),
                     .db = input("db", {kOutputs, kRank}, 0)};
  if (adapter_copies) l.appended = appended(p, l.adapter.a, l.adapter.b, 0.5);
  const Buffer u = p.pb.temp("u", {kRows, l.u_columns(p.pb)}, DType::f32);
  for (std::int64_t first = 0; first < kRows; first += chunk) {
    const std::int64_t count = std::min(chunk, kRows - first);
    const auto rows = [&](Buffer b) { return p.pb.rows(b, first, count); };
    const AdaptedLinear here = l.at(first, 1);
    here.forward(p.pb, rows(x), rows(y), keeps_u ? rows(u) : Buffer());
    here.backward(p.pb, rows(x), rows(dy), rows(dx), false, keeps_u ? rows(u) : Buffer());
  }
  p.run(kStep);
  const ref::LoraDims d = {kRows, kInputs, kOutputs, kRank};
  const ref::LoraDropout drop = {dropout, ops::random_site("dropout", "layer", 1).at(kStep)};
  const auto value = [&](Buffer b) { return p.value(b).values(); };
  const auto expect_near = [&](Buffer b, const std::vector<double>& want) {
    const SampleTensor got = p.value(b);
    for (std::int64_t i = 0; i < got.size(); ++i) {
      // Sums of at most 600 terms of a few units in f32.
      ASSERT_NEAR(got[i], want[to_size(i)], 2e-3) << i;
    }
  };
  expect_near(y, ref::lora(d, value(given_x), value(l.adapter.a), value(l.adapter.b), 0.5, drop));
  const ref::LoraGradients g = ref::lora_backward(d, value(given_x), value(l.adapter.a),
                                                  value(l.adapter.b), 0.5, value(given_dy), drop);
  expect_near(dx, g.dx);
  expect_near(l.adapter_grads.da, g.da);
  expect_near(l.adapter_grads.db, g.db);
  return {p.value(y), p.value(dx), p.value(l.adapter_grads.da), p.value(l.adapter_grads.db)};
}

TEST(AdaptedLinear, DropsTheSameElementsInBothPassesWhateverTheChunks) {
  for (const double dropout : {0.0, 0.4}) {
    const Results whole = run(kRows, dropout), cut = run(kTokenQuantum, dropout);
    EXPECT_EQ(whole.y.bytes(), cut.y.bytes());
    EXPECT_EQ(whole.dx.bytes(), cut.dx.bytes());
    EXPECT_EQ(whole.da.bytes(), cut.da.bytes());
    EXPECT_EQ(whole.db.bytes(), cut.db.bytes());
  }
}

TEST(AdaptedLinear, GivesTheSameBitsFromAKeptU) {
  for (const double dropout : {0.0, 0.4}) {
    const Results again = run(kRows, dropout), kept = run(kRows, dropout, true);
    EXPECT_EQ(again.y.bytes(), kept.y.bytes());
    EXPECT_EQ(again.dx.bytes(), kept.dx.bytes());
    EXPECT_EQ(again.da.bytes(), kept.da.bytes());
    EXPECT_EQ(again.db.bytes(), kept.db.bytes());
  }
}

TEST(AdaptedLinear, InlaidGivesTheSameBitsInChunksAndFromAKeptU) {
  const Results whole = run(kRows, 0, false, true);
  for (const Results& other : {run(kTokenQuantum, 0, false, true), run(kRows, 0, true, true)}) {
    EXPECT_EQ(whole.y.bytes(), other.y.bytes());
    EXPECT_EQ(whole.dx.bytes(), other.dx.bytes());
    EXPECT_EQ(whole.da.bytes(), other.da.bytes());
    EXPECT_EQ(whole.db.bytes(), other.db.bytes());
  }
}

enum class Adapter { none, beside, appended };

// Backward in halves, of a gelu that forward made in one product or of one made again: what forward
// keeps changes nothing, and the halves are the whole.
TEST(AdaptedLinear, GeluAndBackwardInHalvesHaveTheBitsOfTheWhole) {
  for (const Adapter kind : {Adapter::none, Adapter::beside, Adapter::appended}) {
    RecordedProgram p;
    std::uint32_t seed = 0;
    const auto input = [&](const char* name, const Shape& shape, double scale = 1) {
      return p.input(name, SampleTensor(DType::f32, shape).fill_normal(++seed, scale));
    };
    const auto temp = [&](std::int64_t width) {
      return p.pb.temp("t", {kRows, width}, DType::f32);
    };
    const auto with_room = [&](Buffer from) {
      const Buffer to = AppendedAdapter::temp(p.pb, "wide", p.pb.shape(from), DType::f32,
                                              AppendedAdapter::padded(kRank));
      ops::copy(p.pb, from, to);
      return to;
    };
    AdaptedLinear l;
    l.weight = {.weight = input("w", {kOutputs, kInputs}), .bias = input("bias", {kOutputs})};
    if (kind != Adapter::none) {
      l.adapter = {
          .a = input("a", {kRank, kInputs}), .b = input("b", {kOutputs, kRank}), .scale = 0.5};
    }
    if (kind == Adapter::appended) l.appended = appended(p, l.adapter.a, l.adapter.b, 0.5);
    const Buffer x = with_room(input("x", {kRows, kInputs}));
    const Buffer dy = with_room(input("dy", {kRows, kOutputs}));
    const Buffer apart = temp(kOutputs), alone = temp(kOutputs), kept = temp(kOutputs);
    const Buffer pre = temp(kOutputs), sum = temp(kOutputs);
    const bool adapted = kind != Adapter::none;
    const Buffer u = adapted ? temp(l.u_columns(p.pb)) : Buffer();
    const Buffer kept_u = adapted ? temp(l.u_columns(p.pb)) : Buffer();
    l.forward(p.pb, x, sum, u);
    ops::gelu_into(p.pb, sum, apart);
    l.forward_gelu(p.pb, x, alone, {}, {});
    l.forward_gelu(p.pb, x, kept, pre, kept_u);

    const auto gradients = [&] {
      if (!adapted) {
        l.dweight = input("dw", {kOutputs, kInputs}, 0);
        l.dbias = input("dbias", {kOutputs}, 0);
        return std::pair(l.dweight, l.dbias);
      }
      l.adapter_grads = {.da = input("da", {kRank, kInputs}, 0),
                         .db = input("db", {kOutputs, kRank}, 0)};
      return std::pair(l.adapter_grads.da, l.adapter_grads.db);
    };
    const Buffer dx = temp(kInputs), dx_first = temp(kInputs);
    const auto whole = gradients();
    l.backward(p.pb, x, dy, dx, false, u);
    const auto halves = gradients();
    const Buffer du = l.backward_dx(p.pb, dy, dx_first, false);
    l.backward_dw(p.pb, x, dy, du);
    p.run(kStep);

    const auto same = [&](Buffer a, Buffer b) { return p.value(a).bytes() == p.value(b).bytes(); };
    EXPECT_TRUE(same(alone, kept));
    EXPECT_TRUE(same(sum, pre));
    EXPECT_TRUE(!adapted || same(u, kept_u));
    const SampleTensor want = p.value(apart), got = p.value(kept);
    for (std::int64_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-5) << i;
    EXPECT_TRUE(same(dx, dx_first));
    EXPECT_TRUE(same(whole.first, halves.first) && same(whole.second, halves.second));
    EXPECT_NE(p.value(whole.first)[0], 0);
  }
}

}  // namespace
}  // namespace ballast
