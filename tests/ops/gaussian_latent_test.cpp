#include "ops/gaussian_latent.h"

#include <gtest/gtest.h>

#include "core/to_size.h"
#include "ops/kernels/ordered_sum.h"
#include "tests/ref/gaussian_latent.h"
#include "tests/support/finite_differences.h"
#include "tests/support/recorded_program.h"
#include "tests/support/test_device.h"

namespace ballast::ops::gaussian_latent_test {
namespace {

using support::RecordedProgram;
using support::SampleTensor;

constexpr double kWeight = 0.01;

struct Sample {
  SampleTensor moments, noise, dz;
  ref::GaussianLatent ref;

  Sample(std::int64_t rows, std::int64_t columns, DType dtype = DType::f32, std::int64_t start = 0)
      : moments(dtype, {rows, 2 * columns}, {.start = start}),
        noise(dtype, {rows, columns}, {.start = start}),
        dz(dtype, {rows, columns}),
        ref{to_size(columns), kWeight} {
    moments.fill_normal(1);
    noise.fill_normal(2);
    dz.fill_normal(3);
    // Two log-variances on either side of what they may be.
    if (moments.size() < 8) return;
    moments.set(columns, -31);
    moments.set(3 * columns, 21);
  }
};

TEST(GaussianLatentRef, BackwardMatchesFiniteDifferences) {
  const Sample s(3, 4, DType::f64);
  const auto loss = [&](const std::vector<double>& at) {
    double kl = 0, sum = 0;
    const std::vector<double> z = ref::gaussian_latent(s.ref, at, s.noise.values(), &kl);
    for (std::size_t i = 0; i < z.size(); ++i) sum += s.dz.values()[i] * z[i];
    return sum + kl;
  };
  const std::vector<double> numeric = support::numeric_gradient(loss, s.moments.values());
  const std::vector<double> exact =
      ref::gaussian_latent_backward(s.ref, s.moments.values(), s.noise.values(), s.dz.values());
  // exp(21 / 2) is 4e4, and so are the terms that differences are made of.
  for (std::size_t i = 0; i < exact.size(); ++i) {
    EXPECT_NEAR(exact[i], numeric[i], 1e-4 * std::abs(exact[i]) + 1e-4) << i;
  }
}

TEST(GaussianLatentOnDevice, MatchesReferenceForwardAndBackward) {
  ThreadPool pool(2);
  for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{0, 3},
                                      {1, 1},
                                      {5, 3},
                                      {7, 16},
                                      {kSumBlock / 16 + 3, 16}}) {
    Sample s(rows, columns, DType::f32, 1);
    SampleTensor z(DType::f32, {rows, columns}), d(DType::f32, {rows, 2 * columns});
    SampleTensor kl(DType::f64, {1}), half(DType::f32, {1});
    kl.set(0, 0.25);
    half.set(0, 0.5);
    gaussian_latent({.moments = s.moments.view(),
                     .noise = s.noise.view(),
                     .sample_weight = half.view(),
                     .weight = 2 * kWeight,
                     .z = z.view(),
                     .kl = kl.view()},
                    support::test_stream(pool));
    gaussian_latent_backward({.moments = s.moments.view(),
                              .noise = s.noise.view(),
                              .dz = s.dz.view(),
                              .sample_weight = half.view(),
                              .weight = 2 * kWeight,
                              .dmoments = d.view()},
                             support::test_stream(pool));
    double want = 0.25;
    const std::vector<double> zs =
        ref::gaussian_latent(s.ref, s.moments.values(), s.noise.values(), &want);
    // The exponential is good to 3e-7 of itself; e^v - 1 - v loses what 1 and v have beyond it.
    EXPECT_NEAR(kl[0], want, 1e-6 * want);
    for (std::int64_t i = 0; i < z.size(); ++i) {
      const double x = zs[to_size(i)];
      ASSERT_NEAR(z[i], x, 1e-6 * std::abs(x) + 1e-6) << i;
    }
    const std::vector<double> ds =
        ref::gaussian_latent_backward(s.ref, s.moments.values(), s.noise.values(), s.dz.values());
    for (std::int64_t i = 0; i < d.size(); ++i) {
      const double x = ds[to_size(i)];
      ASSERT_NEAR(d[i], x, 1e-6 * std::abs(x) + 1e-6) << i;
    }
    EXPECT_TRUE(s.moments.padding_untouched());
  }
}

TEST(GaussianLatentBits, DependNeitherOnThreadsNorOnAlignment) {
  constexpr std::int64_t kRows = kSumBlock / 3 + 11, kColumns = 6;
  std::optional<SampleTensor> first_z, first_d;
  double first_kl = 0;
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    Sample s(kRows, kColumns, DType::f32, threads - 1);
    SampleTensor z(DType::f32, {kRows, kColumns}), d(DType::f32, {kRows, 2 * kColumns});
    SampleTensor kl(DType::f64, {1});
    gaussian_latent({.moments = s.moments.view(),
                     .noise = s.noise.view(),
                     .weight = kWeight,
                     .z = z.view(),
                     .kl = kl.view()},
                    support::test_stream(pool));
    gaussian_latent_backward({.moments = s.moments.view(),
                              .noise = s.noise.view(),
                              .dz = s.dz.view(),
                              .weight = kWeight,
                              .dmoments = d.view()},
                             support::test_stream(pool));
    const double sum = kl[0];  // waits for a GPU; copying a tensor does not
    if (threads == 1) {
      first_z = z;
      first_d = d;
      first_kl = sum;
    }
    EXPECT_TRUE(z.bytes() == first_z->bytes());
    EXPECT_TRUE(d.bytes() == first_d->bytes());
    EXPECT_EQ(sum, first_kl);
  }
}

TEST(GaussianLatentRecorded, AddsToItsSumAndGivesBothGradients) {
  Sample s(4, 3);
  RecordedProgram p;
  SampleTensor before(DType::f64, {1});
  before.set(0, 1);
  const GaussianLatentBuffers in = {.moments = p.input("moments", s.moments),
                                    .noise = p.input("noise", s.noise),
                                    .sample_weight = {}};
  const Buffer kl = p.input("kl", before);
  const Buffer z = gaussian_latent(p.pb, in, kWeight, kl);
  const Buffer d = gaussian_latent_backward(p.pb, in, kWeight, p.input("dz", s.dz));
  p.run();
  double want = 1;
  const std::vector<double> zs =
      ref::gaussian_latent(s.ref, s.moments.values(), s.noise.values(), &want);
  EXPECT_NEAR(p.value(kl)[0], want, 1e-6 * want);
  EXPECT_NEAR(p.value(z)[5], zs[5], 1e-6 * std::abs(zs[5]) + 1e-6);
  const std::vector<double> ds =
      ref::gaussian_latent_backward(s.ref, s.moments.values(), s.noise.values(), s.dz.values());
  for (const std::int64_t i : {0, 4, 23}) {
    const double x = ds[to_size(i)];
    EXPECT_NEAR(p.value(d)[i], x, 1e-6 * std::abs(x) + 1e-6) << i;
  }
}

TEST(GaussianLatentChecks, RefuseMomentsOfAnotherWidth) {
  ThreadPool pool(1);
  SampleTensor moments(DType::f32, {2, 5}), noise(DType::f32, {2, 3}), z(DType::f32, {2, 3});
  SampleTensor kl(DType::f64, {1});
  EXPECT_THROW(
      gaussian_latent(
          {.moments = moments.view(), .noise = noise.view(), .z = z.view(), .kl = kl.view()},
          support::test_stream(pool)),
      Error);
}

}  // namespace
}  // namespace ballast::ops::gaussian_latent_test
