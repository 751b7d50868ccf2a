#include <gtest/gtest.h>

#include "ops/attention/attention.h"
#include "tests/support/attention_case.h"

// What must not change a bit of attention's results.
namespace ballast::ops {
namespace {

using support::compute;
using support::expect_matches_reference;
using support::Values;
using Inputs = support::AttentionInputs;
using Outputs = support::AttentionOutputs;

class AttentionBits : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, AttentionBits, testing::Values(DType::f32, DType::bf16),
                         support::dtype_name);

// A width that cuDNN does not have: on the GPU it is the plain kernel for every alignment.
TEST_P(AttentionBits, ThreadsGroupsAndStridesDoNotChangeThem) {
  const Inputs in(support::attention_sizes(250, 410, 5, 37, 400), GetParam());
  const Outputs expected = compute(in, {.threads = 1});
  expect_matches_reference(in, expected, 4e-6);
  EXPECT_TRUE(compute(in, {.threads = 2}) == expected);
  EXPECT_TRUE(compute(in, {.threads = 3}) == expected);
  EXPECT_TRUE(compute(in, {.threads = 8}) == expected) << "more threads than heads";
  EXPECT_TRUE(compute(in, {.threads = 2, .heads_per_call = 1}) == expected);
  EXPECT_TRUE(compute(in, {.threads = 3, .heads_per_call = 2}) == expected);
  EXPECT_TRUE(compute(in, {.threads = 2, .gap = 3, .shift = 1}) == expected);
  EXPECT_TRUE(compute(in, {.threads = 2, .gap = 5, .shift = 7, .heads_per_call = 3}) == expected);
}

// Widths that cuDNN has, and an odd number of queries: the lse of a group of heads begins anywhere.
TEST_P(AttentionBits, GroupsOfHeadsAndAlignedStridesDoNotChangeThem) {
  for (const std::int64_t width : {40, 128}) {
    const Inputs in(support::attention_sizes(131, 200, 5, width, 171), GetParam());
    const Outputs expected = compute(in);
    expect_matches_reference(in, expected, 4e-6);
    for (const std::int64_t group : {1, 2, 3}) {
      EXPECT_TRUE(compute(in, {.heads_per_call = group}) == expected) << group << " of " << width;
    }
    EXPECT_TRUE(compute(in, {.gap = 8, .shift = 16}) == expected) << width;
    EXPECT_TRUE(compute(in, {.gap = 24, .shift = 8, .heads_per_call = 2}) == expected) << width;
  }
}

TEST_P(AttentionBits, AreTheSameInEveryRun) {
  const Inputs in(support::attention_sizes(300, 500, 2, 64), GetParam());
  const Outputs expected = compute(in);
  for (int run = 0; run < 3; ++run) EXPECT_TRUE(compute(in) == expected) << run;
}

TEST_P(AttentionBits, OnlyThoseOfDqVaryWithoutDeterminism) {
  const Inputs in(support::attention_sizes(300, 400, 3, 64), GetParam());
  Outputs expected = compute(in), found = compute(in, {.deterministic = false});
  expected.dq.clear();
  found.dq.clear();
  EXPECT_TRUE(found == expected);
}

TEST_P(AttentionBits, QueriesInPiecesGiveTheSame) {
  const Inputs in(support::attention_sizes(300, 210, 2, 24), GetParam());
  const Outputs whole = compute(in);
  for (const std::int64_t cut : {256, 192, 1, 77}) {
    for (const bool second : {false, true}) {
      if (cut == 1 && !second && by_cudnn(in)) continue;  // it has a kernel for a single query
      Inputs part = in;
      const auto at = static_cast<std::ptrdiff_t>(in.n.at(cut, 0, 0));
      const auto keep = [&](const Values& v) {
        return second ? Values(v.begin() + at, v.end()) : Values(v.begin(), v.begin() + at);
      };
      part.n.queries = second ? in.n.queries - cut : cut;
      part.q = keep(in.q);
      part.dout = keep(in.dout);
      const Outputs found = compute(part);
      EXPECT_TRUE(found.o == keep(whole.o)) << cut;
      EXPECT_TRUE(found.dq == keep(whole.dq)) << cut;
    }
  }
}

}  // namespace
}  // namespace ballast::ops
