#include "train/timesteps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <vector>

#include "core/normal_distribution.h"
#include "tests/support/allocation_hook.h"
#include "tests/support/errors.h"

namespace ballast::train {
namespace {

constexpr std::int64_t kHeight = 60, kWidth = 104;  // 480p

double at_quantile(const TimestepOptions& o, double p) {
  return timestep_at_quantile(o, p, kHeight, kWidth).t;
}

std::vector<double> draws(const TimestepOptions& o, int n, DrawAt at = {.seed = 3, .step = 1}) {
  std::vector<double> t;
  for (int i = 0; i < n; ++i) {
    at.sample = i;
    t.push_back(draw_timestep(o, at, kHeight, kWidth).t);
  }
  return t;
}

// Kolmogorov's distance between draws and a distribution function; 1.95 / sqrt(n) is exceeded once
// in a thousand.
void expect_distribution(std::vector<double> t, const std::function<double(double)>& cdf) {
  std::sort(t.begin(), t.end());
  const auto n = static_cast<double>(t.size());
  double distance = 0;
  for (std::size_t i = 0; i < t.size(); ++i) {
    const double f = cdf(t[i]), at = static_cast<double>(i);
    distance = std::max({distance, f - at / n, (at + 1) / n - f});
  }
  EXPECT_LT(distance, 1.95 / std::sqrt(n));
}

double unshift(double t, double s) { return t / (s - (s - 1) * t); }
double logit(double t) { return std::log(t / (1 - t)); }

TimestepOptions musubi(TimestepSampling sampling) {
  return {.sampling = sampling, .time_offset = 1};
}

// Entries of the table, computed apart: quantiles in f32, t = sigmoid(N^-1(q)).
TEST(TimestepTable, HasTheLogitNormalEntriesOfTheReference) {
  const TimestepOptions o;
  const auto entry = [&](int i) { return at_quantile(o, (i + 0.5) / 10000); };
  EXPECT_FLOAT_EQ(static_cast<float>(entry(0)), 0.02368330769240856f);
  EXPECT_FLOAT_EQ(static_cast<float>(entry(2500)), 0.3375450074672699f);
  EXPECT_FLOAT_EQ(static_cast<float>(entry(4999)), 0.49996864795684814f);
  EXPECT_FLOAT_EQ(static_cast<float>(entry(5000)), 0.5000313520431519f);
  EXPECT_FLOAT_EQ(static_cast<float>(entry(9999)), 0.9763157367706299f);
  EXPECT_EQ(entry(1234), static_cast<float>(entry(1234)));  // an f32
}

TEST(TimestepTable, IsUniformWhenAskedFor) {
  const TimestepOptions o = {.sampling = TimestepSampling::table_uniform};
  EXPECT_EQ(at_quantile(o, 0), static_cast<float>(1e-4));
  EXPECT_EQ(at_quantile(o, 1), static_cast<float>(1 - 1e-4));
  EXPECT_FLOAT_EQ(static_cast<float>(at_quantile(o, 0.25005)), 0.25007498f);
}

TEST(TimestepTable, ScalesAndShifts) {
  EXPECT_NEAR(at_quantile({.shift = 3}, 0), 0.06783673167228699, 1e-8);
  EXPECT_NEAR(at_quantile({.shift = 3}, 0.50005), 0.7500234842300415, 1e-7);
  EXPECT_NEAR(at_quantile({.shift = 3}, 1), 0.9919785857200623, 1e-7);
  EXPECT_NEAR(at_quantile({.sigmoid_scale = 2}, 0), 1 / (1 + std::exp(2 * 3.719016485)), 1e-8);
}

// mu = 0.5, 0.72073, 1.15 for 256, 1560 and 4096 patches.
TEST(TimestepTable, ShiftsByResolutionAlongTheLine) {
  const TimestepOptions o = {.sampling = TimestepSampling::table_uniform, .flux_shift = true};
  const auto near_quarter = [&](std::int64_t h, std::int64_t w) {
    return timestep_at_quantile(o, 0.25, h, w).t;
  };
  EXPECT_NEAR(near_quarter(32, 32), 0.3546612443924434, 2e-4);  // the entry next to t = 0.25
  EXPECT_NEAR(near_quarter(60, 104), 0.4066375635869107, 2e-4);
  EXPECT_NEAR(near_quarter(61, 105), near_quarter(60, 104), 0);  // halves are rounded down
  EXPECT_NEAR(near_quarter(128, 128), 0.5128441015091338, 2e-4);
}

// With shift 3 the slice [0.9, 1) is entries 8641 ... 9999, neighbours 0.8999926 and 0.9000339;
// quantile p of it is entry 8641 + int(1359 p).
TEST(TimestepTable, IsCutNotSqueezedIntoTheRange) {
  const TimestepOptions high = {.shift = 3, .min_t = 0.9}, low = {.shift = 3, .max_t = 0.9};
  EXPECT_NEAR(at_quantile(high, 0), 0.9000338912010193, 1e-7);
  EXPECT_NEAR(at_quantile(low, 1), 0.8999926447868347, 1e-7);
  EXPECT_NEAR(at_quantile(high, 0.1), 0.9056588411331177, 1e-7);
  EXPECT_NEAR(at_quantile(high, 0.5), 0.9301838874816895, 1e-7);
  EXPECT_NEAR(at_quantile(high, 0.9), 0.9646779894828796, 1e-7);
  std::set<double> seen;
  for (const double t : draws(high, 20000)) {
    ASSERT_GE(t, 0.9);
    seen.insert(t);
  }
  EXPECT_GT(seen.size(), 1350u);  // all 1359 entries but for chance: e^-14.7 of them are missed
  EXPECT_LE(seen.size(), 1359u);
}

TEST(TimestepTable, OfNoteOneIsTheShiftedThousand) {
  const TimestepOptions o = {.sampling = TimestepSampling::shifted_table};
  EXPECT_NEAR(at_quantile(o, 0), 0.00794438927507448, 1e-9);
  EXPECT_NEAR(at_quantile(o, 0.4995), 0.8888888888888888, 1e-7);  // k = 500
  EXPECT_EQ(at_quantile(o, 1), 1);
  EXPECT_EQ(timestep_at_quantile(o, 1, 1, 1).model_time, 1000);
  const std::vector<double> t = draws(o, 20000);
  EXPECT_EQ(std::set<double>(t.begin(), t.end()).size(), 1000u);
}

TEST(TimestepTable, DrawsItsDistribution) {
  expect_distribution(draws({}, 4000), [](double t) { return normal_cdf(logit(t)); });
  expect_distribution(draws({.shift = 5}, 4000),
                      [](double t) { return normal_cdf(logit(unshift(t, 5))); });
  expect_distribution(draws({.sampling = TimestepSampling::table_uniform}, 4000),
                      [](double t) { return t; });
  const double below = normal_cdf(logit(0.4)), above = normal_cdf(logit(0.7));
  expect_distribution(draws({.min_t = 0.4, .max_t = 0.7}, 4000),
                      [=](double t) { return (normal_cdf(logit(t)) - below) / (above - below); });
}

TEST(TimestepModes, HaveTheQuantilesOfTheirFormulas) {
  EXPECT_EQ(at_quantile(musubi(TimestepSampling::uniform), 0.3), 0.3);
  TimestepOptions o = musubi(TimestepSampling::sigmoid);
  o.sigmoid_scale = 2;
  o.shift = 3;  // of the mode shift alone
  EXPECT_NEAR(at_quantile(o, 0.9), 0.9284488778492188, 1e-12);
  o = musubi(TimestepSampling::shift);
  o.shift = 5;
  EXPECT_NEAR(at_quantile(o, 0.3), 0.7474460802481813, 1e-12);
  o = musubi(TimestepSampling::flux_shift);
  EXPECT_NEAR(at_quantile(o, 0.5), 0.672767564325494, 1e-12);  // 1560 patches
  o = musubi(TimestepSampling::logsnr);
  o.logit_mean = 1.5;
  o.logit_std = 0.5;
  EXPECT_NEAR(at_quantile(o, 0.8), 0.36828187236219556, 1e-12);
}

TEST(TimestepModes, DrawTheirDistributions) {
  expect_distribution(draws(musubi(TimestepSampling::uniform), 4000), [](double t) { return t; });
  TimestepOptions o = musubi(TimestepSampling::shift);
  o.shift = 3;
  const auto cdf = [](double t) { return normal_cdf(logit(unshift(t, 3))); };
  expect_distribution(draws(o, 4000), cdf);
  o.min_t = 0.9;  // squeezed
  expect_distribution(draws(o, 4000), [&](double t) { return cdf((t - 0.9) / 0.1); });
  o.preserve_shape = true;  // drawn again
  o.max_t = 0.95;
  const std::vector<double> kept = draws(o, 4000);
  EXPECT_GE(*std::min_element(kept.begin(), kept.end()), 0.9);
  EXPECT_LE(*std::max_element(kept.begin(), kept.end()), 0.95);
  expect_distribution(kept, [&](double t) { return (cdf(t) - cdf(0.9)) / (cdf(0.95) - cdf(0.9)); });
  o = musubi(TimestepSampling::logsnr);
  o.logit_mean = -1;
  expect_distribution(draws(o, 4000), [](double t) { return normal_cdf(2 * logit(t) - 1); });
}

// A range of a millionth of the mass would take a million tries.
TEST(TimestepModes, KeepTheShapeInAnUnlikelyRange) {
  TimestepOptions o = musubi(TimestepSampling::sigmoid);
  o.preserve_shape = true;
  o.min_t = 0.992;
  for (const double t : draws(o, 100)) {
    EXPECT_GE(t, 0.992);
    EXPECT_LT(t, 1);
  }
}

TEST(TimestepSigma, CountsItsIndexFromNoiseToClean) {
  TimestepOptions o = musubi(TimestepSampling::sigma);
  // k = floor(1000 (1 - p)): t = 1 - k / 1000, time 1000 - k without the 1 of the other modes.
  EXPECT_EQ(timestep_at_quantile(o, 0.75, 1, 1).t, 0.75);
  EXPECT_EQ(timestep_at_quantile(o, 0.75, 1, 1).model_time, 750);
  EXPECT_EQ(timestep_at_quantile(o, 1, 1, 1).t, 1);
  EXPECT_EQ(timestep_at_quantile(o, 0, 1, 1).model_time, 1);
  o.min_t = 0.9;  // k = 900 ... 999: the clean end
  for (const double t : draws(o, 500)) {
    EXPECT_GE(t, 0.001);
    EXPECT_LE(t, 0.1);
  }
  o.shift = 5;  // no effect
  EXPECT_EQ(timestep_at_quantile(o, 1, 1, 1).t, 0.1);
}

TEST(TimestepSigma, FollowsTheWeightingScheme) {
  TimestepOptions o = musubi(TimestepSampling::sigma);
  o.weighting = Weighting::mode;
  // share 0.5788785122713547 of u = 0.3: k = 578.
  EXPECT_EQ(timestep_at_quantile(o, 0.3, 1, 1).model_time, 422);
  o.weighting = Weighting::logit_normal;
  o.logit_mean = 0.2;
  o.logit_std = 0.8;
  // share 0.4453392263248791 at the 0.3 quantile, that is at 0.7 of t: k = 445.
  EXPECT_EQ(timestep_at_quantile(o, 0.7, 1, 1).model_time, 555);
  // Steps of a thousandth are within what the distance allows.
  expect_distribution(draws(o, 2000), [](double t) {
    return 1 - normal_cdf((logit(std::min(1 - t + 0.0005, 0.9995)) - 0.2) / 0.8);
  });
}

TEST(TimestepSigma, IsRoundedToTheModelsType) {
  TimestepOptions o = musubi(TimestepSampling::sigma);
  o.sigma_dtype = DType::bf16;
  const Timestep step = timestep_at_quantile(o, 0.7005, 1, 1);  // 0.701
  EXPECT_EQ(step.t, 0.69921875);                                // 179 / 256
  EXPECT_EQ(step.model_time, 701);
}

TEST(TimestepTime, FollowsTheConvention) {
  const TimestepOptions plain, plus = musubi(TimestepSampling::uniform);
  const Timestep a = timestep_at_quantile(plain, 0.3, 1, 1);
  EXPECT_EQ(a.model_time, 1000 * a.t);
  EXPECT_EQ(timestep_at_quantile(plus, 0.25, 1, 1).model_time, 251);
}

TEST(TimestepWeight, FollowsTheFormulas) {
  TimestepOptions o = musubi(TimestepSampling::uniform);
  const auto weight = [&](Weighting w, double t) {
    o.weighting = w;
    return timestep_at_quantile(o, t, 1, 1).weight;
  };
  EXPECT_EQ(weight(Weighting::none, 0.25), 1);
  EXPECT_EQ(weight(Weighting::logit_normal, 0.25), 1);
  EXPECT_EQ(weight(Weighting::mode, 0.25), 1);
  EXPECT_EQ(weight(Weighting::sigma_sqrt, 0.25), 16);
  EXPECT_NEAR(weight(Weighting::cosmap, 0.25), 2 / (3.14159265358979 * 0.625), 1e-12);
  EXPECT_NEAR(weight(Weighting::cosmap, 0.5), 4 / 3.14159265358979, 1e-12);
  EXPECT_NEAR(weight(Weighting::bell, 0.5), (1 - std::exp(-0.5)) / 0.18949555359518486, 1e-12);
  EXPECT_EQ(weight(Weighting::bell, 1), 0);
}

TEST(TimestepDraw, DependsOnSeedStepAndSampleAlone) {
  const auto draw = [](const DrawAt& at) {
    return draw_timestep(musubi(TimestepSampling::uniform), at, 1, 1).t;
  };
  const double t = draw({.seed = 1, .step = 2, .sample = 3});
  EXPECT_EQ(draw({.seed = 1, .step = 2, .sample = 3, .samples_before = 17}), t);
  EXPECT_NE(draw({.seed = 2, .step = 2, .sample = 3}), t);
  EXPECT_NE(draw({.seed = 1, .step = 3, .sample = 3}), t);
  EXPECT_NE(draw({.seed = 1, .step = 2, .sample = 4}), t);
}

// Steps of three samples over strata of seven: each round of seven holds every share once, in an
// order of its own.
TEST(TimestepDraw, TakesEachStratumOncePerRound) {
  TimestepOptions o = musubi(TimestepSampling::uniform);
  o.strata = 7;
  std::set<std::vector<int>> orders;
  std::vector<int> order;
  for (std::int64_t k = 0; k < 7 * 30; ++k) {
    const DrawAt at = {.seed = 4, .step = k / 3 + 1, .sample = k % 3, .samples_before = k / 3 * 3};
    order.push_back(static_cast<int>(7 * draw_timestep(o, at, 1, 1).t));
    if (order.size() < 7) continue;
    orders.insert(order);
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, (std::vector{0, 1, 2, 3, 4, 5, 6}));
    order.clear();
  }
  EXPECT_GT(orders.size(), 25u);
}

std::vector<TimestepOptions> all_samplings() {
  std::vector<TimestepOptions> all;
  for (int k = 0; k <= static_cast<int>(TimestepSampling::shifted_table); ++k) {
    TimestepOptions o = musubi(static_cast<TimestepSampling>(k));
    if (o.sampling <= TimestepSampling::table_uniform) o.time_offset = 0;
    all.push_back(o);
    o.shift = 5;
    o.preserve_shape = true;
    o.min_t = 0.05;
    o.max_t = 0.95;
    all.push_back(o);
  }
  return all;
}

TEST(Experts, NeverCrossTheBoundary) {
  for (const TimestepOptions& o : all_samplings()) {
    for (const int expert : {0, 1}) {
      for (std::int64_t i = 0; i < 300; ++i) {
        const Timestep step =
            draw_timestep(o,
                          {.seed = 1,
                           .step = 1,
                           .sample = i,
                           .side = ExpertSide{.expert = expert, .boundary = 0.875}},
                          kHeight, kWidth);
        ASSERT_EQ(step.model_time / 1000 >= 0.875, expert == 1)
            << static_cast<int>(o.sampling) << " " << step.t;
      }
    }
  }
}

// Drawing an expert and then a sample on its side is drawing a sample.
TEST(Experts, KeepTheDistribution) {
  TimestepOptions o = musubi(TimestepSampling::shift);
  o.shift = 3;
  std::vector<double> t;
  int high = 0;
  for (std::int64_t step = 1; step <= 4000; ++step) {
    const int expert = draw_expert(o, 0.9, 5, step);
    high += expert;
    const DrawAt at = {
        .seed = 5, .step = step, .side = ExpertSide{.expert = expert, .boundary = 0.9}};
    t.push_back(draw_timestep(o, at, 1, 1).t);
  }
  const auto cdf = [](double x) { return normal_cdf(logit(unshift(x, 3))); };
  expect_distribution(t, cdf);
  const double share = 1 - cdf(0.899);  // the boundary is in model time, 1000 t + 1
  EXPECT_NEAR(high / 4000.0, share, 4 * std::sqrt(share * (1 - share) / 4000));
}

TEST(Experts, AreChosenByStepAndSeed) {
  const TimestepOptions o = {.shift = 5};
  std::vector<int> a, b;
  for (std::int64_t step = 1; step <= 200; ++step) {
    a.push_back(draw_expert(o, 0.9, 1, step));
    b.push_back(draw_expert(o, 0.9, 2, step));
    EXPECT_EQ(draw_expert(o, 0.9, 1, step), a.back());
  }
  EXPECT_NE(a, b);
}

TEST(TimestepErrors, NameWhatCannotBe) {
  const auto draw = [](const TimestepOptions& o, std::optional<ExpertSide> side = {}) {
    return draw_timestep(o, {.seed = 1, .step = 1, .side = side}, kHeight, kWidth);
  };
  const auto input = ErrorCode::input;
  EXPECT_NO_THROW(draw({}));
  EXPECT_FAILS(draw({.min_t = 0.5, .max_t = 0.5}), input, "[0.5, 0.5]");
  EXPECT_FAILS(draw({.min_t = -0.1}), input, "-0.1");
  EXPECT_FAILS(draw({.max_t = std::nan("")}), input, "nan");
  EXPECT_FAILS(draw({.min_t = 0.98}), input, "0.98");  // the table ends at 0.976
  EXPECT_FAILS(draw({.sigmoid_scale = 0}), input, "sigmoid_scale");
  EXPECT_FAILS(draw({.shift = -1}), input, "shift is -1");
  EXPECT_FAILS(draw({.logit_std = 0}), input, "logit_std");
  EXPECT_FAILS(draw({.mode_scale = 2, .weighting = Weighting::mode}), input, "mode_scale is 2");
  EXPECT_FAILS(draw({.strata = -1}), input, "-1 strata");
  EXPECT_FAILS(draw({.max_t = 0.8}, ExpertSide{.expert = 1, .boundary = 0.9}), input, "high-noise");
  EXPECT_FAILS(draw({.min_t = 0.9}, ExpertSide{.expert = 0, .boundary = 0.9}), input, "low-noise");
}

TEST(TimestepDraw, AllocatesNothing) {
  SKIP_WITHOUT_ALLOCATION_HOOK();
  const std::vector<TimestepOptions> all = all_samplings();
  double sum = 0;
  allocation_hook::arm();
  for (const TimestepOptions& o : all) {
    const int expert = draw_expert(o, 0.9, 1, 1, kHeight, kWidth);
    const DrawAt at = {.seed = 1, .step = 1, .side = ExpertSide{expert, 0.9}};
    sum += draw_timestep(o, at, kHeight, kWidth).t;
  }
  const auto seen = allocation_hook::disarm();
  EXPECT_EQ(seen.calls(), 0) << seen.first;
  EXPECT_GT(sum, 0);
}

}  // namespace
}  // namespace ballast::train
