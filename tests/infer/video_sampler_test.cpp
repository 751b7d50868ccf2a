#include "infer/video_sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "infer/merged_model.h"
#include "models/wan/lora_write.h"
#include "tests/support/errors.h"
#include "tests/support/tiny_dit.h"

namespace ballast::infer {
namespace {

using support::normal_values;
using support::TinyCheckpoint;

constexpr wan::LatentSize kSize = {2, 6, 4};

// Two experts of a small transformer, in files.
class TinyExperts {
 public:
  explicit TinyExperts(std::int64_t conditioning = 0) : config_(support::tiny_config()) {
    config_.in_dim = config_.out_dim + conditioning;
    for (const char* kind : {"low.", "high."}) {
      files_.push_back(std::make_unique<TinyCheckpoint>(config_, DType::f32, kind));
      checkpoints_.push_back(WeightFiles::open(files_.back()->path()));
    }
  }

  const wan::Config& config() const { return config_; }
  const WeightFiles& checkpoint(std::size_t e) const { return checkpoints_[e]; }
  void replace(std::size_t e, const std::string& path) {
    checkpoints_[e] = WeightFiles::open(path);
  }

  VideoJob job(std::size_t experts, const std::string& policy = "resident") const {
    VideoJob j;
    j.sampler = {.steps = 4};  // timesteps 999, 937, 833, 624
    j.latent = kSize;
    j.guidance = {3, 4};
    j.boundary = experts > 1 ? 0.9 : 0;
    j.request.backend.threads = 2;
    j.request.profile = bundled_profiles()[0];
    j.request.profile.device = Device::cpu;
    j.request.policy = find_policy(policy);
    j.request.budget = {1_GiB, 2_GiB, 1_GiB};
    wan::job_of(j.request).dit.config = config_;
    for (std::size_t e = 0; e < experts; ++e) {
      wan::job_of(j.request).experts.push_back(weight_groups(config_, checkpoints_[e]));
    }
    return j;
  }

 private:
  wan::Config config_;
  std::vector<std::unique_ptr<TinyCheckpoint>> files_;
  std::vector<WeightFiles> checkpoints_;
};

// Deliberately its own copy of the numbers, alive as long as a run.
struct Text {
  std::vector<float> prompt = normal_values("prompt", 7 * 20, 1);
  std::vector<float> negative = normal_values("negative", 3 * 20, 1);
  VideoInputs inputs(std::uint64_t seed = 1) const {
    return {.prompt = prompt, .negative = negative, .seed = seed};
  }
};
const Text kText;

fit::PlannedRun plan(const VideoJob& job) {
  return std::move(std::get<fit::PlannedRun>(fit::find_plan(fit_request(job))));
}

std::vector<float> run(const VideoJob& job, const VideoInputs& inputs, const OnStep& on_step = {}) {
  return VideoSampler(job, plan(job)).run(inputs, on_step);
}

double furthest(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max<double>(most, std::abs(a[i] - b[i]));
  return most;
}

TEST(VideoSampler, PoliciesAndThreadsChangeNoBit) {
  const TinyExperts tiny;
  const std::vector<float> first = run(tiny.job(2), kText.inputs());
  for (const char* policy : {"stream1", "stream2", "chunked", "matrix-streaming"}) {
    VideoJob job = tiny.job(2, policy);
    job.request.backend.threads = 1;
    EXPECT_EQ(run(job, kText.inputs()), first) << policy;
  }
}

TEST(VideoSampler, APlanFitsTheBudgetThatItWasMadeFor) {
  const TinyExperts tiny;
  VideoJob job = tiny.job(2);
  job.request.policy.reset();
  job.request.budget.gpu = plan(tiny.job(2, "stream1")).needed(Tier::device);
  ASSERT_GT(plan(tiny.job(2)).needed(Tier::device), job.request.budget.gpu);
  const fit::PlannedRun lean = plan(job);
  EXPECT_LE(lean.needed(Tier::device), job.request.budget.gpu);
  EXPECT_GT(lean.policy.stream().slots, 0);
  VideoSampler sampler(job, plan(job));
  EXPECT_EQ(sampler.run(kText.inputs()), run(tiny.job(2), kText.inputs()));
  EXPECT_EQ(sampler.high_water(Tier::device), lean.plan.peak_of(Tier::device));
  job.request.budget.gpu = 10_KiB;
  EXPECT_TRUE(std::holds_alternative<Refusal>(fit::find_plan(fit_request(job))));
}

TEST(VideoSampler, EndsAtTheFirstStepWhoseLatentIsNoNumber) {
  const TinyExperts tiny;
  Text text;
  text.prompt[5] = std::numeric_limits<float>::quiet_NaN();
  int steps = 0;
  EXPECT_FAILS(run(tiny.job(1), text.inputs(), [&](const StepReport&) { ++steps; }),
               ErrorCode::input, "the latent after step 1 of 4 holds ");
  EXPECT_EQ(steps, 0);
}

TEST(VideoSampler, TheIdleExpertIsNotInMemory) {
  const TinyExperts tiny;
  const fit::PlannedRun one = plan(tiny.job(1)), two = plan(tiny.job(2));
  EXPECT_EQ(two.plan.peak_of(Tier::device), one.plan.peak_of(Tier::device));
  EXPECT_EQ(two.plan.persistent[0], one.plan.persistent[0]);
  VideoSampler sampler(tiny.job(2), plan(tiny.job(2)));
  sampler.run(kText.inputs());
  EXPECT_EQ(sampler.expert_changes(), 2);  // each is read once
  sampler.run(kText.inputs());
  EXPECT_EQ(sampler.expert_changes(), 4);
}

TEST(VideoSampler, TheHighNoiseExpertHasTheBoundaryItself) {
  const TinyExperts tiny;
  VideoJob job = tiny.job(2);
  const auto experts = [&] {
    std::string text;
    for (const PlannedStep& s : planned_steps(job)) {
      EXPECT_EQ(s.guidance, s.expert == 1 ? 4 : 3);
      text += s.expert == 1 ? 'h' : 'l';
    }
    return text;
  };
  job.boundary = 0.937;  // the second timestep is 937
  EXPECT_EQ(experts(), "hhll");
  job.boundary = std::nextafter(0.937, 1);
  EXPECT_EQ(experts(), "hlll");
  job.boundary = 1;
  EXPECT_EQ(experts(), "llll");
  job.high_noise_steps = 3;
  EXPECT_EQ(experts(), "hhhl");
}

TEST(VideoSampler, ModelsDefaultsChangeExpertsWhereTheReferenceDoes) {
  const TinyExperts tiny;
  const auto high = [&](double shift, double boundary) {
    VideoJob job = tiny.job(2);
    job.sampler = {.steps = 40, .shift = shift};
    job.boundary = boundary;
    std::int64_t count = 0;
    for (const PlannedStep& s : planned_steps(job)) count += s.expert;
    return count;
  };
  EXPECT_EQ(high(12, 0.875), 26);
  EXPECT_EQ(high(5, 0.9), 15);
}

TEST(VideoSampler, NoiseIsAFunctionOfSeedAndClip) {
  const TinyExperts tiny;
  VideoSampler sampler(tiny.job(1), plan(tiny.job(1)));
  const std::vector<float> first = sampler.run(kText.inputs(1));
  EXPECT_NE(sampler.run(kText.inputs(2)), first);
  VideoInputs second = kText.inputs(1);
  second.clip = 1;
  EXPECT_NE(sampler.run(second), first);
  EXPECT_EQ(sampler.run(kText.inputs(1)), first);
  std::vector<float> noise(first.size());
  make_noise(1, 0, noise);
  VideoInputs given = kText.inputs(99);
  given.noise = noise;
  EXPECT_EQ(sampler.run(given), first);
}

TEST(VideoSampler, GuidanceOneEvaluatesThePromptAloneToTheSameBits) {
  const TinyExperts tiny;
  const auto first_answer = [&](double guidance, std::size_t& second) {
    VideoJob job = tiny.job(1);
    job.guidance = {guidance, guidance};
    std::vector<float> answer;
    run(job, kText.inputs(), [&](const StepReport& s) {
      if (s.step == 1) answer.assign(s.conditional.begin(), s.conditional.end());
      second = s.unconditional.size();
    });
    return answer;
  };
  std::size_t with = 0, without = 1;
  EXPECT_EQ(first_answer(1, without), first_answer(5, with));
  EXPECT_EQ(without, 0u);
  EXPECT_GT(with, 0u);
  VideoJob mixed = tiny.job(2);
  mixed.guidance = {1, 4};
  std::string evaluated;
  run(mixed, kText.inputs(),
      [&](const StepReport& s) { evaluated += s.unconditional.empty() ? '1' : '2'; });
  EXPECT_EQ(evaluated, "2211");
}

TEST(VideoSampler, TheFirstFrameStaysWhatWasGiven) {
  const TinyExperts tiny;
  VideoJob job = tiny.job(1);
  job.first_frame = true;
  const std::size_t frame = 6 * 4, cells = 2 * frame;
  const std::vector<float> given = normal_values("frame", 4 * 24, 1);
  VideoInputs inputs = kText.inputs();
  EXPECT_FAILS(run(job, inputs), ErrorCode::input, "first frame");
  inputs.first_frame = given;
  const std::vector<float> x = run(job, inputs, [&](const StepReport& s) {
    EXPECT_EQ(s.input[0], given[0]);
    EXPECT_EQ(s.input[cells], given[frame]);
  });
  for (std::size_t c = 0; c < 4; ++c) {
    for (std::size_t i = 0; i < frame; ++i) ASSERT_EQ(x[c * cells + i], given[c * frame + i]);
  }
}

TEST(VideoSampler, ReportsCountStepsAndTimeLeft) {
  const TinyExperts tiny;
  std::vector<double> left;
  run(tiny.job(2), kText.inputs(), [&](const StepReport& s) {
    EXPECT_EQ(s.step, std::ssize(left) + 1);
    EXPECT_EQ(s.steps, 4);
    EXPECT_GT(s.seconds, 0);
    left.push_back(s.seconds_left);
  });
  EXPECT_GT(left.front(), 0);
  EXPECT_EQ(left.back(), 0);
  EXPECT_GT(predicted_seconds(tiny.job(2), plan(tiny.job(2))), 0);
}

// A LoRA for the model, of a rank of its own.
std::string lora_file(const test::TempDir& dir, const std::string& name, std::int64_t rank,
                      std::vector<std::string> names) {
  std::vector<wan::LoraModule> modules;
  std::vector<std::vector<float>> kept;
  kept.reserve(2 * names.size());
  const auto numbers = [&](const std::string& site, const Shape& shape) {
    kept.push_back(normal_values(name + site, shape.elements(), 0.3));
    return wan::LoraNumbers{.shape = shape,
                            .memory = reinterpret_cast<const std::byte*>(kept.back().data())};
  };
  for (const std::string& module : names) {
    wan::LoraModule& m = modules.emplace_back();
    m.name = module;
    m.rank = rank;
    m.alpha = 2;
    m.down = numbers(module + "d", {rank, 64});
    m.up = numbers(module + "u", {64, rank});
  }
  const std::string path = dir.path(name + ".safetensors");
  write_lora(path, modules, {.format = wan::LoraFormat::comfy, .dtype = {}, .metadata = {}});
  return path;
}

TEST(VideoSampler, AppliedLorasAreWhatMergedOnesAre) {
  TinyExperts tiny;
  const test::TempDir dir;
  const std::vector<LoraPath> paths = {
      {lora_file(dir, "a", 3, {"blocks.0.self_attn.q", "blocks.1.cross_attn.o"}), 0.5},
      {lora_file(dir, "b", 2, {"blocks.0.self_attn.q"}), -1}};
  const wan::LoraReader a = wan::LoraReader::open(paths[0].first, &tiny.config()),
                        b = wan::LoraReader::open(paths[1].first, &tiny.config());
  const std::vector<float> plain = run(tiny.job(2), kText.inputs());
  VideoJob job = tiny.job(2, "stream1");
  job.loras = {{&a, 0.5, -1}, {&b, -1.0, 1}};  // the second for the high-noise expert alone
  const std::vector<float> applied = run(job, kText.inputs());
  tiny.replace(0, merged_model(tiny.checkpoint(0), tiny.config(), std::span(paths).first(1),
                               dir.path("merged"), 2));
  tiny.replace(1, merged_model(tiny.checkpoint(1), tiny.config(), paths, dir.path("merged"), 2));
  const std::vector<float> merged = run(tiny.job(2), kText.inputs());
  EXPECT_LT(furthest(applied, merged), 1e-4);
  EXPECT_GT(furthest(applied, plain), 1e-2);
}

TEST(VideoSampler, ConditioningIsAMaskAndTheClipsLatent) {
  const TinyExperts tiny(6);  // a mask and two channels
  VideoJob job = tiny.job(2);
  const std::vector<float> latent = normal_values("clip", 2 * kSize.cells(), 1);
  const std::vector<float> y = image_conditioning(kSize, latent);
  ASSERT_EQ(std::ssize(y), 6 * kSize.cells());
  for (std::size_t i = 0; i < 4 * 48; ++i) ASSERT_EQ(y[i], i % 48 < 24 ? 1 : 0);
  EXPECT_EQ(std::vector(y.begin() + 4 * 48, y.end()), latent);
  EXPECT_FAILS(image_conditioning(kSize, std::span(latent).first(7)), ErrorCode::input, "7");
  VideoInputs inputs = kText.inputs();
  EXPECT_FAILS(run(job, inputs), ErrorCode::input, "conditioning");
  inputs.conditioning = y;
  const std::vector<float> x = run(job, inputs);
  std::vector<float> other = y;
  other.back() += 1;
  inputs.conditioning = other;
  EXPECT_NE(run(job, inputs), x);
}

TEST(VideoSampler, JobsThatMakeNoSenseAreRefused) {
  const TinyExperts tiny;
  const auto with = [&](auto change) {
    VideoJob job = tiny.job(2);
    change(job);
    return planned_steps(job);
  };
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FAILS(with([](auto& j) { j.guidance[0] = kNan; }), ErrorCode::usage, "guidance");
  EXPECT_FAILS(with([](auto& j) { j.boundary = kNan; }), ErrorCode::usage, "boundary");
  EXPECT_FAILS(with([](auto& j) { j.boundary = 0; }), ErrorCode::usage, "boundary");
  EXPECT_FAILS(with([](auto& j) { j.latent.height = 5; }), ErrorCode::usage, "2 x 5 x 4");
  EXPECT_FAILS(with([](auto& j) { j.latent.frames = 0; }), ErrorCode::usage, "latent");
  EXPECT_FAILS(with([](auto& j) { j.latent.width = 1 << 30; }), ErrorCode::usage, "latent");
  EXPECT_FAILS(with([](auto& j) { j.sampler.steps = 0; }), ErrorCode::usage, "0 steps");
  VideoInputs inputs = kText.inputs();
  const std::vector<float> rows(20 * 13), odd(21);
  inputs.prompt = rows;
  EXPECT_FAILS(run(tiny.job(1), inputs), ErrorCode::input, "up to 12 rows of 20");
  inputs.prompt = odd;
  EXPECT_FAILS(run(tiny.job(1), inputs), ErrorCode::input, "prompt has 21");
}

}  // namespace
}  // namespace ballast::infer
