#include "infer/sampler.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "core/to_size.h"
#include "tests/support/errors.h"

namespace ballast::infer {
namespace {

using ::testing::ElementsAre;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Any smooth v(x, t).
std::vector<float> walk(const SamplerOptions& options, std::vector<float> x) {
  Sampler sampler(options, x.size());
  std::vector<float> v(x.size());
  while (!sampler.done()) {
    const double t = sampler.schedule().timesteps[to_size(sampler.next())];
    for (std::size_t i = 0; i < x.size(); ++i) {
      v[i] = std::sin(2 * x[i] + 3 * (static_cast<float>(t) / 1000)) + 0.3f * x[i];
    }
    sampler.step(v, x);
  }
  return x;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max<double>(most, std::abs(a[i] - b[i]));
  return most;
}

const std::vector<float> kStart = {0.5f, -1.25f, 2.0f, 0.0f};

TEST(Schedules, TimestepsOfTheModelsDefaultsAreTheReferences) {
  const Schedule t2v = make_schedule({.steps = 40, .shift = 12});
  EXPECT_EQ(t2v.timesteps[0], 999);
  EXPECT_EQ(t2v.timesteps[25], 877);  // the last of the high-noise expert
  EXPECT_EQ(t2v.timesteps[26], 865);
  EXPECT_EQ(t2v.timesteps[39], 235);
  const Schedule i2v = make_schedule({.steps = 40, .shift = 5});
  EXPECT_EQ(i2v.timesteps[14], 902);
  EXPECT_EQ(i2v.timesteps[15], 892);
}

TEST(Schedules, RoundingBelowAWholeTimestepIsKept) {
  const Schedule s = make_schedule({.solver = Solver::dpmpp, .steps = 10, .shift = 3});
  EXPECT_THAT(s.timesteps, ElementsAre(1000, 964, 923, 874, 818, 750, 666, 562, 428, 249));
}

TEST(Schedules, FourDistilledStepsAreShiftedQuarters) {
  const Schedule s = make_schedule(distilled_steps());
  EXPECT_THAT(s.sigmas, ElementsAre(1.0f, 0.9375f, 5.0f / 6, 0.625f, 0.0f));
  EXPECT_THAT(s.timesteps, ElementsAre(1000, 937.5, 1000.0f * (5.0f / 6), 625));
}

TEST(Schedules, DistilledStepsMayBeOthers) {
  EXPECT_THAT(distilled_steps(2).listed, ElementsAre(1000, 500));
  EXPECT_EQ(distilled_steps(8).steps, 8);
  const Schedule s = make_schedule(distilled_steps(std::vector<double>{1000, 750}));
  EXPECT_THAT(s.sigmas, ElementsAre(1.0f, 0.9375f, 0.0f));
  EXPECT_THROW(make_schedule(distilled_steps(0)), Error);
  EXPECT_THROW(make_schedule(distilled_steps(std::int64_t{1} << 60)), Error);
  EXPECT_THROW(make_schedule(distilled_steps(std::vector<double>{500, 750})), Error);
}

TEST(Schedules, OtherProgramsOnesStartAndEndAsTheirsDo) {
  const Schedule simple = make_schedule(
      {.solver = Solver::euler, .schedule = SigmaSchedule::simple, .steps = 3, .shift = 1});
  EXPECT_THAT(simple.sigmas, ElementsAre(1.0f, 0.667f, 0.334f, 0.0f));
  const Schedule unipc = make_schedule({.schedule = SigmaSchedule::diffusers, .steps = 20});
  EXPECT_EQ(unipc.sigmas[0], 0.999999f);
  EXPECT_EQ(unipc.timesteps[0], 999);
  const Schedule euler = make_schedule(
      {.solver = Solver::euler, .schedule = SigmaSchedule::diffusers, .steps = 8, .shift = 3});
  EXPECT_EQ(euler.timesteps[0], 1000);
  const double least = 3 * 0.001 / (1 + 2 * 0.001);  // shifted twice
  EXPECT_NEAR(euler.sigmas[7], 3 * least / (1 + 2 * least), 1e-7);
  const Schedule linear =
      make_schedule({.solver = Solver::euler, .schedule = SigmaSchedule::linear, .steps = 30});
  EXPECT_EQ(linear.sigmas.front(), 0.999f);
  EXPECT_EQ(linear.sigmas.back(), 0.01f);
}

TEST(Schedules, OptionsThatMakeNoneAreRefused) {
  const auto with = [](auto change) {
    SamplerOptions o;
    change(o);
    return make_schedule(o);
  };
  EXPECT_FAILS(with([](auto& o) { o.steps = 0; }), ErrorCode::usage, "0 steps");
  EXPECT_FAILS(with([](auto& o) { o.steps = -4; }), ErrorCode::usage, "-4 steps");
  EXPECT_FAILS(with([](auto& o) { o.steps = std::int64_t{1} << 40; }), ErrorCode::usage, "steps");
  EXPECT_FAILS(with([](auto& o) { o.shift = 0; }), ErrorCode::usage, "shift");
  EXPECT_FAILS(with([](auto& o) { o.shift = -1; }), ErrorCode::usage, "shift");
  EXPECT_FAILS(with([](auto& o) { o.shift = kNan; }), ErrorCode::usage, "shift");
  EXPECT_FAILS(with([](auto& o) { o.shift = 1e300; }), ErrorCode::usage, "shift");
  EXPECT_FAILS(with([](auto& o) { o.shift = 1e6, o.steps = 1000; }), ErrorCode::usage,
               "too close together");
  const auto listed = [&](std::vector<double> t) {
    return with([&](auto& o) { o.schedule = SigmaSchedule::listed, o.listed = t; });
  };
  EXPECT_FAILS(listed({}), ErrorCode::usage, "0 listed");
  EXPECT_FAILS(listed({500, 750}), ErrorCode::usage, "750");
  EXPECT_FAILS(listed({1001}), ErrorCode::usage, "1001");
  EXPECT_FAILS(listed({kNan}), ErrorCode::usage, "nan");
  EXPECT_FAILS(with([](auto& o) {
                 o.schedule = SigmaSchedule::linear;
                 o.sigma_end = kNan;
               }),
               ErrorCode::usage, "sigmas");
}

TEST(Samplers, AnswersOfTheReferenceComeOutToTheLastDigits) {
  const auto near = [](const SamplerOptions& o, const std::vector<float>& expected) {
    EXPECT_LT(distance(walk(o, kStart), expected), 5e-7) << name_of(o.solver);
  };
  near({.steps = 4}, {0.509103775f, -0.682552397f, 1.914649606f, -0.807197809f});
  near({.steps = 6, .shift = 12}, {0.626387775f, -0.760801554f, 1.793077826f, -0.822511792f});
  near({.solver = Solver::dpmpp, .steps = 4},
       {0.535313189f, -0.679793358f, 1.914705157f, -0.793606222f});
  near({.solver = Solver::euler, .steps = 4},
       {0.574507952f, -0.670108974f, 1.913940787f, -0.770312130f});
}

TEST(Samplers, HalfTheStepLengthGivesAQuarterOfASecondOrderError) {
  // Within (0, 1) and with timesteps as they are, so that nothing but the steps' length counts.
  const auto end = [](Solver solver, std::int64_t steps) {
    return walk({.solver = solver,
                 .schedule = SigmaSchedule::linear,
                 .steps = steps,
                 .sigma_start = 0.9,
                 .sigma_end = 0.1},
                kStart);
  };
  const std::vector<float> exact = end(Solver::unipc, 1000);
  const auto gain = [&](Solver solver) {
    return distance(end(solver, 8), exact) / distance(end(solver, 16), exact);
  };
  EXPECT_NEAR(gain(Solver::euler), 2, 0.4);
  EXPECT_GT(gain(Solver::dpmpp), 3);
  EXPECT_GT(gain(Solver::unipc), 3);
}

TEST(Samplers, AConstantVelocityIsFollowedExactlyAndEndsInX0) {
  for (const Solver solver : {Solver::unipc, Solver::dpmpp, Solver::euler}) {
    for (const std::int64_t steps : {1, 2, 3, 9}) {
      Sampler sampler({.solver = solver, .steps = steps}, 2);
      const float first = sampler.schedule().sigmas[0];
      std::vector<float> x = {1, -2};
      const std::vector<float> v = {0.5f, 4};
      while (!sampler.done()) sampler.step(v, x);
      EXPECT_NEAR(x[0], 1 - first * 0.5f, 2e-6) << name_of(solver) << steps;
      EXPECT_NEAR(x[1], -2 - first * 4, 8e-6) << name_of(solver) << steps;
    }
  }
}

TEST(Samplers, OneStepGivesTheFirstPrediction) {
  for (const Solver solver : {Solver::unipc, Solver::dpmpp}) {
    Sampler sampler({.solver = solver, .steps = 1}, 1);
    std::vector<float> x = {3};
    sampler.step(std::vector<float>{0.25f}, x);
    EXPECT_EQ(x[0], 3 - sampler.schedule().sigmas[0] * 0.25f);
    EXPECT_TRUE(sampler.done());
    EXPECT_FAILS(sampler.step(std::vector<float>{0.25f}, x), ErrorCode::internal, "are done");
  }
}

TEST(Samplers, EverySolverStaysFiniteOnEverySchedule) {
  for (const Solver solver : {Solver::unipc, Solver::dpmpp, Solver::euler}) {
    for (const SigmaSchedule schedule :
         {SigmaSchedule::official, SigmaSchedule::diffusers, SigmaSchedule::simple,
          SigmaSchedule::listed, SigmaSchedule::linear}) {
      const std::vector<float> x = walk(
          {.solver = solver, .schedule = schedule, .steps = 4, .listed = {1000, 750, 500, 250}},
          kStart);
      for (const float e : x) EXPECT_LT(std::abs(e), 5) << name_of(solver) << name_of(schedule);
    }
  }
}

TEST(Samplers, StateIsAsLargeAsSaid) {
  EXPECT_EQ(Sampler::bytes(Solver::unipc, 100), Bytes{1600});
  EXPECT_EQ(Sampler::bytes(Solver::dpmpp, 100), Bytes{800});
  EXPECT_EQ(Sampler::bytes(Solver::euler, 100), Bytes{0});
}

}  // namespace
}  // namespace ballast::infer
