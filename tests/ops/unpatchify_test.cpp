#include "ops/unpatchify.h"

#include <gtest/gtest.h>

#include "core/to_size.h"
#include "ops/kernels/token_quantum.h"
#include "tests/ref/unpatchify.h"
#include "tests/support/finite_differences.h"
#include "tests/support/recorded_program.h"
#include "tests/support/test_device.h"

namespace ballast::ops::unpatchify_test {
namespace {

using support::RecordedProgram;
using support::SampleTensor;

constexpr ref::LatentSize kSizes[] = {{16, 3, 8, 6}, {1, 1, 2, 2}, {3, 2, 4, 14}, {5, 1, 2, 10},
                                      {2, 0, 4, 4},  {0, 1, 2, 2}, {7, 4, 6, 34}};

Shape latent_shape(const ref::LatentSize& s) { return {s.channels, s.frames, s.height, s.width}; }
Shape token_shape(const ref::LatentSize& s) { return {s.tokens(), 4 * s.channels}; }

TEST(UnpatchifyRef, KnowsWhereAnElementGoes) {
  const ref::LatentSize s = {3, 2, 4, 6};  // tokens 2 x 2 x 3
  std::vector<double> y(to_size(s.elements()), 0);
  y[((1 * 2 + 1) * 3 + 2) * 12 + (1 * 2 + 0) * 3 + 2] = 1;  // c 2 is the fastest index
  EXPECT_EQ(ref::unpatchify(s, y)[((2 * 2 + 1) * 4 + 3) * 6 + 4], 1);
}

TEST(UnpatchifyRef, BackwardMatchesFiniteDifferences) {
  const ref::LatentSize s = {3, 2, 4, 6};
  const SampleTensor x = SampleTensor(DType::f64, {s.elements()}).fill_normal(1);
  const SampleTensor dy = SampleTensor(DType::f64, {s.elements()}).fill_normal(2);
  const auto f = [&](const std::vector<double>& at) {
    return support::dot(ref::unpatchify(s, at), dy.values());
  };
  const std::vector<double> numeric = support::numeric_gradient(f, x.values());
  const std::vector<double> exact = ref::unpatchify_backward(s, dy.values());
  for (std::size_t i = 0; i < exact.size(); ++i) EXPECT_NEAR(exact[i], numeric[i], 1e-10) << i;
}

class UnpatchifyOnCpu : public testing::TestWithParam<std::tuple<ref::LatentSize, DType, int>> {
 protected:
  ref::LatentSize size = std::get<0>(GetParam());
  DType dtype = std::get<1>(GetParam());
  ThreadPool pool{std::get<2>(GetParam())};
  Stream stream() { return support::test_stream(pool); }
};

// A permutation: the values are those of the reference rounded to the output's dtype, every bit.
TEST_P(UnpatchifyOnCpu, ForwardMatchesReference) {
  SampleTensor in(dtype, token_shape(size), {.row_padding = 5, .start = 3});
  in.fill_normal(1);
  SampleTensor out(DType::f32, latent_shape(size), {.row_padding = 3, .start = 1});
  SampleTensor want = out;
  unpatchify({.y = in.view(), .v = out.view()}, stream());
  want.fill(ref::unpatchify(size, in.values()));
  EXPECT_EQ(out.values(), want.values());
  EXPECT_TRUE(out.padding_untouched());
}

TEST_P(UnpatchifyOnCpu, BackwardMatchesReference) {
  SampleTensor dout(DType::f32, latent_shape(size), {.row_padding = 3, .start = 1});
  dout.fill_normal(1);
  SampleTensor din(dtype, token_shape(size), {.row_padding = 5, .start = 3});
  SampleTensor want = din;
  unpatchify_backward({.dv = dout.view(), .dy = din.view()}, stream());
  want.fill(ref::unpatchify_backward(size, dout.values()));
  EXPECT_EQ(din.values(), want.values());
  EXPECT_TRUE(din.padding_untouched());
}

INSTANTIATE_TEST_SUITE_P(Sizes, UnpatchifyOnCpu,
                         testing::Combine(testing::ValuesIn(kSizes),
                                          testing::Values(DType::f32, DType::bf16),
                                          testing::Values(1, 3)));

TEST(UnpatchifyChunks, GiveTheSameBitsAsTheWhole) {
  const ref::LatentSize s = {4, 3, 20, 26};  // 390 tokens
  ThreadPool pool(2);
  for (const std::int64_t chunk : {kTokenQuantum, std::int64_t{13}, std::int64_t{7}}) {
    SampleTensor in(DType::f32, token_shape(s)), whole(DType::f32, latent_shape(s));
    SampleTensor parts = whole, din = in, din_parts = in;
    in.fill_normal(1);
    unpatchify({.y = in.view(), .v = whole.view()}, support::test_stream(pool));
    unpatchify_backward({.dv = whole.view(), .dy = din.view()}, support::test_stream(pool));
    for (std::int64_t first = 0; first < s.tokens(); first += chunk) {
      const std::int64_t rows = std::min(chunk, s.tokens() - first);
      unpatchify({.y = in.view().rows(first, rows), .v = parts.view(), .first_token = first},
                 support::test_stream(pool));
      unpatchify_backward(
          {.dv = whole.view(), .dy = din_parts.view().rows(first, rows), .first_token = first},
          support::test_stream(pool));
    }
    EXPECT_EQ(parts.bytes(), whole.bytes());
    EXPECT_EQ(din_parts.bytes(), din.bytes());
    EXPECT_EQ(din.bytes(), in.bytes());  // the inverse of a permutation brings everything back
  }
}

TEST(UnpatchifyChecks, RefuseWhatDoesNotFit) {
  ThreadPool pool(1);
  const auto run = [&](const Shape& latent, const Shape& tokens, std::int64_t first) {
    SampleTensor l(DType::f32, latent), t(DType::f32, tokens);
    unpatchify({.y = t.view(), .v = l.view(), .first_token = first}, support::test_stream(pool));
  };
  EXPECT_NO_THROW(run({2, 1, 4, 4}, {4, 8}, 0));
  EXPECT_NO_THROW(run({2, 1, 4, 4}, {1, 8}, 3));
  EXPECT_THROW(run({2, 1, 4, 4}, {2, 8}, 3), Error);
  EXPECT_THROW(run({2, 1, 4, 4}, {1, 8}, -1), Error);
  EXPECT_THROW(run({2, 1, 3, 4}, {2, 8}, 0), Error);
  EXPECT_THROW(run({2, 1, 4, 5}, {4, 8}, 0), Error);
  EXPECT_THROW(run({2, 1, 4, 4}, {4, 12}, 0), Error);
}

TEST(UnpatchifyRecorded, RunsChunkByChunk) {
  const ref::LatentSize s = {2, 1, 4, 6};
  SampleTensor rows = SampleTensor(DType::bf16, token_shape(s)).fill_normal(1);
  RecordedProgram p;
  const Buffer y = p.input("y", rows);
  const Buffer v = p.pb.temp("v", latent_shape(s), DType::f32);
  const Buffer dy = p.pb.temp("dy", token_shape(s), DType::bf16);
  unpatchify(p.pb, p.pb.rows(y, 0, 4), v, 0);
  unpatchify(p.pb, p.pb.rows(y, 4, 2), v, 4);
  unpatchify_backward(p.pb, v, dy, 0);
  EXPECT_EQ(p.instruction(0).writes, std::vector{v});
  EXPECT_EQ(p.instruction(2).reads, std::vector{v});
  EXPECT_EQ(p.instruction(2).writes, std::vector{dy});
  p.run();
  EXPECT_EQ(p.value(v).values(), ref::unpatchify(s, rows.values()));
  EXPECT_EQ(p.value(dy).values(), rows.values());
}

}  // namespace
}  // namespace ballast::ops::unpatchify_test
