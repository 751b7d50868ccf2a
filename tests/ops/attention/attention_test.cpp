#include "ops/attention/attention.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "core/error.h"
#include "tests/support/attention_case.h"

namespace ballast::ops::attention_test {
namespace {

using support::by_cudnn;
using support::compute;
using support::expect_matches_reference;
using support::Heads;
using support::Values;
using Sizes = support::AttentionSizes;
using Inputs = support::AttentionInputs;
using Outputs = support::AttentionOutputs;

Sizes sizes(std::int64_t lq, std::int64_t lk, std::int64_t heads, std::int64_t width,
            std::int64_t kv = -1) {
  return support::attention_sizes(lq, lk, heads, width, kv);
}

class AttentionOnDevice : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, AttentionOnDevice, testing::Values(DType::f32, DType::bf16),
                         support::dtype_name);

TEST_P(AttentionOnDevice, MatchesReference) {
  for (const Sizes& n : {
           sizes(1, 1, 1, 1),  // smallest
           sizes(7, 5, 2, 3),
           sizes(1, 9, 2, 8),    // one query
           sizes(9, 17, 3, 33),  // odd widths
           sizes(50, 50, 2, 32),
           sizes(61, 61, 1, 40),
           sizes(48, 48, 2, 48),
           sizes(40, 70, 2, 64),
           sizes(192, 192, 1, 16),
           sizes(193, 191, 1, 16),  // around one tile
           sizes(385, 401, 1, 20),
           sizes(97, 577, 2, 8),     // several tiles
           sizes(130, 260, 2, 128),  // the models' head width
           sizes(5, 300, 1, 256),
           sizes(300, 2, 1, 7),
           sizes(12, 12, 5, 131),
       }) {
    SCOPED_TRACE(testing::Message() << n.queries << " queries, " << n.keys << " keys, " << n.heads
                                    << " heads of " << n.width);
    const Inputs in(n, GetParam());
    expect_matches_reference(in, compute(in), 4e-6);
  }
}

TEST_P(AttentionOnDevice, GradientsThatMayVaryMatchReference) {
  for (const Sizes& n : {sizes(130, 260, 2, 128), sizes(61, 77, 3, 40, 70), sizes(5, 9, 1, 12)}) {
    const Inputs in(n, GetParam());
    expect_matches_reference(in, compute(in, {.deterministic = false}), 4e-6);
  }
}

TEST_P(AttentionOnDevice, KeysBeyondTheLengthTakeNoPart) {
  for (const std::int64_t kv : {1, 2, 8, 16, 191, 192, 193, 200, 229}) {
    SCOPED_TRACE(kv);
    Inputs in(sizes(30, 230, 2, kv % 2 == 0 ? 12 : 16, kv), GetParam());
    for (std::int64_t j = kv; j < in.n.keys; ++j) {  // whatever stands there
      for (std::int64_t h = 0; h < in.n.heads; ++h) {
        for (std::int64_t d = 0; d < in.n.width; ++d) {
          in.k[in.n.at(j, h, d)] = std::numeric_limits<double>::quiet_NaN();
          in.v[in.n.at(j, h, d)] = std::numeric_limits<double>::infinity();
        }
      }
    }
    const Outputs found = compute(in);
    expect_matches_reference(in, found, 4e-6);
    for (std::size_t i = in.n.at(kv, 0, 0); i < found.dk.size(); ++i) {
      ASSERT_EQ(found.dk[i], 0.0);
      ASSERT_EQ(found.dv[i], 0.0);
    }
  }
}

TEST_P(AttentionOnDevice, NoKeysGiveZeros) {
  for (const Sizes& n : {sizes(20, 30, 2, 12, 0), sizes(20, 0, 2, 12), sizes(20, 30, 2, 16, 0)}) {
    const Outputs found = compute(Inputs(n, GetParam()));
    EXPECT_EQ(found.o, Values(n.q_size(), 0.0));
    EXPECT_EQ(found.dq, Values(n.q_size(), 0.0));
    EXPECT_EQ(found.dk, Values(n.k_size(), 0.0));
    EXPECT_EQ(found.dv, Values(n.k_size(), 0.0));
    for (const float x : found.lse) EXPECT_EQ(x, -std::numeric_limits<float>::infinity());
  }
}

TEST_P(AttentionOnDevice, NoQueriesGiveZeroGradients) {
  for (const std::int64_t width : {12, 16}) {
    const Sizes n = sizes(0, 30, 2, width);
    const Outputs found = compute(Inputs(n, GetParam()));
    EXPECT_EQ(found.dk, Values(n.k_size(), 0.0));
    EXPECT_EQ(found.dv, Values(n.k_size(), 0.0));
  }
}

// Scores of +-1e4: e^score is far beyond every float, and the weights are nearly one-hot. A score
// and its lse are rounded by up to 2^-11 each here, so weights are off by 1e-3 at most. cuDNN takes
// powers of 2, with scores 1.44 times as large, and its products come from sums that truncate: four
// times that.
TEST_P(AttentionOnDevice, LargeScoresDoNotOverflow) {
  Sizes n = sizes(40, 300, 2, 64);
  n.scale = 4000.0 / 8;
  const Inputs in(n, GetParam());
  const Outputs found = compute(in);
  double most = 0;
  for (const float x : found.lse) most = std::max(most, static_cast<double>(x));
  EXPECT_GT(most, 1e4);
  expect_matches_reference(in, found, by_cudnn(in) ? 1.6e-2 : 4e-3);
}

TEST_P(AttentionOnDevice, TheRunningMaximumMayRiseInEveryTile) {
  Inputs in(sizes(10, 800, 1, 8), GetParam());
  for (std::int64_t j = 0; j < in.n.keys; ++j) {
    for (std::int64_t d = 0; d < in.n.width; ++d) {
      in.k[in.n.at(j, 0, d)] = support::round_to(GetParam(), static_cast<double>(j) / 100);
    }
  }
  expect_matches_reference(in, compute(in), 2e-5);  // scores reach 20: 2^-20 each
}

TEST_P(AttentionOnDevice, WritesNothingBetweenTheHeads) {
  struct Case {
    std::int64_t width, gap, shift;
  };
  for (const Case c : {Case{5, 4, 2}, Case{8, 8, 8}}) {
    const Inputs in(sizes(20, 30, 3, c.width), GetParam());
    Heads q(GetParam(), 20, 3, c.width), k(GetParam(), 30, 3, c.width);
    Heads o(GetParam(), 20, 3, c.width, c.gap, c.shift);
    q.set(in.q), k.set(in.k);
    support::DeviceVector<float> lse(60);
    ThreadPool pool(1);
    support::Scratch scratch(
        attention_workspace(q.view.shape, GetParam(), support::attention_backend()));
    attention({.q = q.view,
               .k = k.view,
               .v = k.view,
               .o = o.view,
               .lse = support::lse_view(lse, 3, 20),
               .workspace = scratch.view(),
               .scale = 1,
               .kv_length = 30},
              support::test_stream(pool));
    o.each([&](std::size_t, std::byte* at) { std::memset(at, 0xcd, size_of(GetParam())); });
    EXPECT_TRUE(std::ranges::all_of(o.memory, [](std::byte b) { return b == std::byte{0xcd}; }))
        << c.width;
  }
}

TEST(Attention, RefusesOperandsThatDoNotFit) {
  ThreadPool pool(1);
  Heads q(DType::bf16, 4, 2, 8), k(DType::bf16, 6, 2, 8), o(DType::bf16, 4, 2, 8);
  q.set(Values(64, 1.0)), k.set(Values(96, 1.0));
  support::DeviceVector<float> lse(8);
  support::Scratch scratch(
      attention_workspace(q.view.shape, DType::bf16, support::attention_backend()));
  const Attention good = {.q = q.view,
                          .k = k.view,
                          .v = k.view,
                          .o = o.view,
                          .lse = support::lse_view(lse, 2, 4),
                          .workspace = scratch.view(),
                          .scale = 1,
                          .kv_length = 6};
  EXPECT_NO_THROW(attention(good, support::test_stream(pool)));
  const auto refuses = [&](auto&& change) {
    Attention bad = good;
    change(bad);
    EXPECT_THROW(attention(bad, support::test_stream(pool)), Error);
  };
  refuses([](Attention& a) { a.kv_length = 7; });
  refuses([](Attention& a) { a.kv_length = -1; });
  refuses([](Attention& a) { a.v.shape[0] = 5; });
  refuses([](Attention& a) { a.k.shape[2] = a.v.shape[2] = 4; });
  refuses([](Attention& a) { a.o.dtype = DType::f32; });
  refuses([](Attention& a) { a.q.strides[2] = 2; });
  refuses([](Attention& a) { a.lse.shape = {4, 2}; });
  if (!scratch.memory.empty()) {  // some GPUs need none
    refuses([](Attention& a) { a.workspace.shape[0] -= 1; });
  }
}

}  // namespace
}  // namespace ballast::ops::attention_test
