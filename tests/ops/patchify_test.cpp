#include "ops/patchify.h"

#include <gtest/gtest.h>

#include "core/to_size.h"
#include "ops/kernels/token_quantum.h"
#include "tests/ref/patchify.h"
#include "tests/support/finite_differences.h"
#include "tests/support/recorded_program.h"
#include "tests/support/test_device.h"

namespace ballast::ops::patchify_test {
namespace {

using support::RecordedProgram;
using support::SampleTensor;

constexpr ref::LatentSize kSizes[] = {{16, 3, 8, 6}, {1, 1, 2, 2}, {3, 2, 4, 14}, {5, 1, 2, 10},
                                      {2, 0, 4, 4},  {0, 1, 2, 2}, {7, 4, 6, 34}};

Shape latent_shape(const ref::LatentSize& s) { return {s.channels, s.frames, s.height, s.width}; }
Shape token_shape(const ref::LatentSize& s) { return {s.tokens(), 4 * s.channels}; }

TEST(PatchifyRef, KnowsWhereAnElementGoes) {
  const ref::LatentSize s = {3, 2, 4, 6};  // tokens 2 x 2 x 3
  std::vector<double> latent(to_size(s.elements()), 0);
  latent[((2 * 2 + 1) * 4 + 3) * 6 + 4] = 1;  // c 2, frame 1, row 3 = 2*1+1, column 4 = 2*2+0
  EXPECT_EQ(ref::patchify(s, latent)[((1 * 2 + 1) * 3 + 2) * 12 + 2 * 4 + 1 * 2 + 0], 1);
}

TEST(PatchifyRef, BackwardMatchesFiniteDifferences) {
  const ref::LatentSize s = {3, 2, 4, 6};
  const SampleTensor x = SampleTensor(DType::f64, {s.elements()}).fill_normal(1);
  const SampleTensor dy = SampleTensor(DType::f64, {s.elements()}).fill_normal(2);
  const auto f = [&](const std::vector<double>& at) {
    return support::dot(ref::patchify(s, at), dy.values());
  };
  const std::vector<double> numeric = support::numeric_gradient(f, x.values());
  const std::vector<double> exact = ref::patchify_backward(s, dy.values());
  for (std::size_t i = 0; i < exact.size(); ++i) EXPECT_NEAR(exact[i], numeric[i], 1e-10) << i;
}

class PatchifyOnCpu : public testing::TestWithParam<std::tuple<ref::LatentSize, DType, int>> {
 protected:
  ref::LatentSize size = std::get<0>(GetParam());
  DType dtype = std::get<1>(GetParam());
  ThreadPool pool{std::get<2>(GetParam())};
  Stream stream() { return support::test_stream(pool); }
};

// A permutation: the values are those of the reference rounded to the output's dtype, every bit.
TEST_P(PatchifyOnCpu, ForwardMatchesReference) {
  SampleTensor in(DType::f32, latent_shape(size), {.row_padding = 3, .start = 1});
  in.fill_normal(1);
  SampleTensor out(dtype, token_shape(size), {.row_padding = 5, .start = 3});
  SampleTensor want = out;
  patchify({.latent = in.view(), .tokens = out.view()}, stream());
  want.fill(ref::patchify(size, in.values()));
  EXPECT_EQ(out.values(), want.values());
  EXPECT_TRUE(out.padding_untouched());
}

TEST_P(PatchifyOnCpu, BackwardMatchesReference) {
  SampleTensor dout(dtype, token_shape(size), {.row_padding = 5, .start = 3});
  dout.fill_normal(1);
  SampleTensor din(DType::f32, latent_shape(size), {.row_padding = 3, .start = 1});
  SampleTensor want = din;
  patchify_backward({.dtokens = dout.view(), .dlatent = din.view()}, stream());
  want.fill(ref::patchify_backward(size, dout.values()));
  EXPECT_EQ(din.values(), want.values());
  EXPECT_TRUE(din.padding_untouched());
}

INSTANTIATE_TEST_SUITE_P(Sizes, PatchifyOnCpu,
                         testing::Combine(testing::ValuesIn(kSizes),
                                          testing::Values(DType::f32, DType::bf16),
                                          testing::Values(1, 3)));

TEST(PatchifyChunks, GiveTheSameBitsAsTheWhole) {
  const ref::LatentSize s = {4, 3, 20, 26};  // 390 tokens
  ThreadPool pool(2);
  for (const std::int64_t chunk : {kTokenQuantum, std::int64_t{13}, std::int64_t{7}}) {
    SampleTensor in(DType::f32, latent_shape(s)), whole(DType::f32, token_shape(s));
    SampleTensor parts = whole, din = in, din_parts = in;
    in.fill_normal(1);
    patchify({.latent = in.view(), .tokens = whole.view()}, support::test_stream(pool));
    patchify_backward({.dtokens = whole.view(), .dlatent = din.view()}, support::test_stream(pool));
    for (std::int64_t first = 0; first < s.tokens(); first += chunk) {
      const std::int64_t rows = std::min(chunk, s.tokens() - first);
      patchify(
          {.latent = in.view(), .tokens = parts.view().rows(first, rows), .first_token = first},
          support::test_stream(pool));
      patchify_backward({.dtokens = whole.view().rows(first, rows),
                         .dlatent = din_parts.view(),
                         .first_token = first},
                        support::test_stream(pool));
    }
    EXPECT_EQ(parts.bytes(), whole.bytes());
    EXPECT_EQ(din_parts.bytes(), din.bytes());
    EXPECT_EQ(din.bytes(), in.bytes());  // the inverse of a permutation brings everything back
  }
}

TEST(PatchifyChecks, RefuseWhatDoesNotFit) {
  ThreadPool pool(1);
  const auto run = [&](const Shape& latent, const Shape& tokens, std::int64_t first) {
    SampleTensor l(DType::f32, latent), t(DType::f32, tokens);
    patchify({.latent = l.view(), .tokens = t.view(), .first_token = first},
             support::test_stream(pool));
  };
  EXPECT_NO_THROW(run({2, 1, 4, 4}, {4, 8}, 0));
  EXPECT_NO_THROW(run({2, 1, 4, 4}, {1, 8}, 3));
  EXPECT_THROW(run({2, 1, 4, 4}, {2, 8}, 3), Error);
  EXPECT_THROW(run({2, 1, 4, 4}, {1, 8}, -1), Error);
  EXPECT_THROW(run({2, 1, 3, 4}, {2, 8}, 0), Error);
  EXPECT_THROW(run({2, 1, 4, 5}, {4, 8}, 0), Error);
  EXPECT_THROW(run({2, 1, 4, 4}, {4, 12}, 0), Error);
}

TEST(PatchifyRecorded, FillsAColumnRangeOfAWiderMatrix) {
  const ref::LatentSize s = {2, 1, 4, 6};
  SampleTensor x = SampleTensor(DType::f32, latent_shape(s)).fill_normal(1);
  SampleTensor more = SampleTensor(DType::f32, {3, 1, 4, 6}).fill_normal(2);
  RecordedProgram p;
  const Buffer latent = p.input("latent", x), condition = p.input("condition", more);
  const Buffer tokens = p.pb.temp("tokens", {6, 20}, DType::bf16);
  const Buffer left = p.pb.columns(tokens, 0, 8), right = p.pb.columns(tokens, 8, 12);
  patchify(p.pb, latent, left, 0);
  patchify(p.pb, condition, p.pb.rows(right, 0, 4), 0);
  patchify(p.pb, condition, p.pb.rows(right, 4, 2), 4);
  const Buffer back = p.pb.temp("back", latent_shape(s), DType::f32);
  patchify_backward(p.pb, left, back, 0);
  EXPECT_EQ(p.instruction(0).reads, std::vector{latent});
  EXPECT_EQ(p.instruction(0).writes, std::vector{left});
  EXPECT_EQ(p.instruction(3).reads, std::vector{left});
  EXPECT_EQ(p.instruction(3).writes, std::vector{back});
  EXPECT_EQ(p.instruction(0).cost.bytes, 6 * 8 * (2 + 4));
  p.run();
  const std::vector<double> a = ref::patchify(s, x.values());
  const std::vector<double> b = ref::patchify({3, 1, 4, 6}, more.values());
  SampleTensor want(DType::bf16, {6, 20});
  for (std::size_t l = 0; l < 6; ++l) {
    for (std::size_t c = 0; c < 20; ++c) {
      want.set(static_cast<std::int64_t>(l * 20 + c), c < 8 ? a[l * 8 + c] : b[l * 12 + c - 8]);
    }
  }
  EXPECT_EQ(p.value(tokens).values(), want.values());
  SampleTensor rounded(DType::bf16, latent_shape(s));
  EXPECT_EQ(p.value(back).values(), rounded.fill(x.values()).values());
}

}  // namespace
}  // namespace ballast::ops::patchify_test
