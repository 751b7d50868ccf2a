#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <thread>

#include "tests/ballast/small_model.h"

namespace ballast {
namespace {

using support::kSmallLatent;
using support::SmallModel;
using v1::ErrorCode;
using v1::Model;

template <class F>
v1::Error error_of(F&& f) {
  try {
    f();
  } catch (const v1::Error& e) {
    return e;
  }
  ADD_FAILURE() << "no error";
  return {ErrorCode::internal, "none"};
}

TEST(Model, SaysWhatAFileHolds) {
  const SmallModel small;
  const Model m = small.open();
  EXPECT_EQ(m.info().name, "wan");
  EXPECT_EQ(m.info().layers, 4);
  EXPECT_EQ(m.info().width, 128);
  EXPECT_EQ(m.info().latent_channels, 4);
  EXPECT_EQ(m.info().conditioning_channels, 2);
  EXPECT_EQ(m.info().text_width, 8);
  EXPECT_EQ(m.info().bytes, 4 * m.info().parameters);
  EXPECT_FALSE(m.started());
}

TEST(Model, IsNotWhatIsNoTransformer) {
  const test::TempDir dir;
  const v1::Error e = error_of([&] { Model::open(dir.write("x.safetensors", "no tensors here")); });
  EXPECT_EQ(e.code(), ErrorCode::input);
  EXPECT_THAT(e.what(), testing::HasSubstr("x.safetensors"));
}

TEST(Model, PlansWithoutReadingWeights) {
  const SmallModel small;
  Model m = small.open();
  m.set_budget({.ram = 1'000'000'000});
  const v1::Plan p = m.plan();
  EXPECT_TRUE(p.fits);
  EXPECT_GT(p.planned.device, 0u);
  EXPECT_GE(p.planned.ram, p.planned.device + p.planned.host);
  EXPECT_EQ(p.allowed.ram, 1'000'000'000u);
  EXPECT_GT(p.seconds_per_step, 0);
  EXPECT_THAT(p.text, testing::HasSubstr("predict"));
  EXPECT_THAT(p.json, testing::HasSubstr("\"fits\": true"));
  EXPECT_FALSE(m.started());
}

TEST(Model, PlansNoFurtherThanTheSystemAllows) {
  const SmallModel small;
  Model m = small.open();
  constexpr std::uint64_t kPetabyte = 1'000'000'000'000'000;
  m.set_budget({.ram = kPetabyte});
  EXPECT_LT(m.plan().allowed.ram, kPetabyte);
}

TEST(Model, AnswersWithAdviceWhenItDoesNotFit) {
  const SmallModel small;
  Model m = small.open();
  m.set_budget({.ram = 10'000'000});
  const v1::Plan p = m.plan();
  EXPECT_FALSE(p.fits);
  EXPECT_GT(p.planned.ram, p.allowed.ram);
  EXPECT_THAT(p.json, testing::HasSubstr("\"fits\": false"));
  ASSERT_FALSE(p.advice.empty());
  // The advice is true: the budget it names is enough.
  const auto more = std::ranges::find_if(p.advice, [](const v1::Advice& a) {
    return a.change.starts_with("set_budget({.ram = ") && a.change.ends_with("'000'000})");
  });
  ASSERT_NE(more, p.advice.end());
  EXPECT_THAT(more->effect, testing::HasSubstr("fits")) << more->change;
  m.set_budget({.ram = std::stoull(more->change.substr(19)) * 1'000'000});
  EXPECT_TRUE(m.plan().fits);
}

TEST(Model, RefusesToStartWhereThePlanDoesNotFit) {
  const SmallModel small;
  Model m = small.open();
  m.set_budget({.ram = 10'000'000});
  const v1::Error e = error_of([&] { m.start(); });
  EXPECT_EQ(e.code(), ErrorCode::refused);
  EXPECT_FALSE(e.advice().empty());
  m.set_budget({.ram = 1'000'000'000});
  m.start();
  EXPECT_TRUE(m.started());
}

TEST(Model, LearnsASample) {
  SmallModel small;
  Model m = small.open();
  std::vector<v1::Sample> samples = small.samples(2);
  for (v1::Sample& s : samples) s.t = 0.5;
  double first = 0, last = 0;
  for (int i = 0; i < 40; ++i) {
    const v1::StepResult r = m.step(samples);
    EXPECT_EQ(r.step, i + 1);
    EXPECT_TRUE(r.updated);
    EXPECT_GT(r.grad_norm, 0);
    if (i < 5) first += r.loss;
    if (i >= 35) last += r.loss;
  }
  EXPECT_LT(last, 0.8 * first);
  EXPECT_EQ(m.steps(), 40);
}

TEST(Model, UsesWhatItPlanned) {
  SmallModel small;
  Model m = small.open();
  m.enable_offloading();
  const v1::Plan p = m.plan();
  m.step(small.samples(2));
  EXPECT_EQ(m.measured().device, p.planned.device);
  EXPECT_EQ(m.measured().host, p.planned.host);
}

TEST(Model, PredictsWithWhatWasTrained) {
  SmallModel small;
  Model m = small.open();
  const std::vector<v1::Sample> samples = small.samples(2);
  std::vector<float> before(samples[0].latent.size()), after(before.size());
  m.predict(samples[0], 500, before);
  Model plain = Model::open(small.path());
  plain.set_training({.method = v1::Method::predict_only});
  plain.set_batches({{kSmallLatent}});
  plain.predict(samples[0], 500, after);
  EXPECT_EQ(before, after);  // B is zero at first: the adapters say nothing yet
  m.step(samples);
  m.predict(samples[0], 500, after);
  EXPECT_NE(before, after);
  for (const float x : after) ASSERT_TRUE(std::isfinite(x));
}

TEST(Model, GoesOnFromACheckpointToTheBit) {
  SmallModel small;
  const test::TempDir dir;
  Model whole = small.open(), part = small.open(), rest = small.open();
  const auto step = [&](Model& m, int i) { return m.step(small.samples(2, i)); };
  for (int i = 0; i < 2; ++i) step(whole, i), step(part, i);
  part.save_checkpoint(dir.path("run"));
  rest.enable_gradient_checkpointing();  // memory may differ
  EXPECT_FALSE(rest.load_checkpoint(dir.path("nothing")));
  ASSERT_TRUE(rest.load_checkpoint(dir.path("run")));
  EXPECT_EQ(rest.steps(), 2);
  for (int i = 2; i < 4; ++i) {
    const v1::StepResult a = step(whole, i), b = step(rest, i);
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_EQ(a.grad_norm, b.grad_norm);
  }
  whole.save_lora(dir.path("a.safetensors"), v1::LoraFormat::comfy, v1::SaveType::f32);
  rest.save_lora(dir.path("b.safetensors"), v1::LoraFormat::comfy, v1::SaveType::f32);
  EXPECT_EQ(test::read_whole(dir.path("a.safetensors")),
            test::read_whole(dir.path("b.safetensors")));
}

TEST(Model, RefusesACheckpointOfOtherSettings) {
  SmallModel small;
  const test::TempDir dir;
  Model m = small.open();
  m.step(small.samples(2));
  m.save_checkpoint(dir.path("run"));
  Model other = small.open();
  other.set_training({.rank = 4, .alpha = 1, .seed = 5});
  const v1::Error e = error_of([&] { other.load_checkpoint(dir.path("run")); });
  EXPECT_EQ(e.code(), ErrorCode::input);
  EXPECT_THAT(e.what(), testing::HasSubstr("other training options"));
}

TEST(Model, TrainsAllWeightsAndSavesThem) {
  SmallModel small(support::trainable_config(2, 2));
  const test::TempDir dir;
  Model m = small.open(1);
  m.set_training({.method = v1::Method::full, .learning_rate = 1e-3});
  const std::vector<v1::Sample> samples = small.samples(1);
  m.step(samples);
  m.save_model(dir.path("trained.safetensors"), v1::SaveType::f32);
  std::vector<float> here(samples[0].latent.size()), there(here.size());
  m.predict(samples[0], 250, here);
  Model trained = Model::open(dir.path("trained.safetensors"));
  trained.set_training({.method = v1::Method::predict_only});
  trained.set_batches({{kSmallLatent}});
  trained.predict(samples[0], 250, there);
  EXPECT_EQ(here, there);
  EXPECT_EQ(error_of([&] { m.save_lora(dir.path("l.safetensors")); }).code(), ErrorCode::usage);
}

TEST(Model, LeavesTheWeightsAloneWhenTheLossIsNoNumber) {
  SmallModel small;
  Model m = small.open(1);
  std::vector<v1::Sample> samples = small.samples(1);
  std::vector<float> bad(samples[0].latent.begin(), samples[0].latent.end());
  bad[3] = std::nanf("");
  std::vector<float> before(bad.size()), after(bad.size());
  m.step(samples);
  m.predict(samples[0], 500, before);
  std::vector<v1::Sample> broken = samples;
  broken[0].latent = bad;
  EXPECT_FALSE(m.step(broken).updated);
  m.predict(samples[0], 500, after);
  EXPECT_EQ(before, after);
}

TEST(Model, NamesWhatIsWrongWithASample) {
  SmallModel small;
  Model m = small.open(1);
  const v1::Sample good = small.samples(1)[0];
  const auto message = [&](auto&& spoil) {
    v1::Sample s = good;
    spoil(s);
    const v1::Error e = error_of([&] { m.step(std::span(&s, 1)); });
    EXPECT_EQ(e.code(), ErrorCode::input);
    return std::string(e.what());
  };
  EXPECT_THAT(message([](v1::Sample& s) { s.latent = s.latent.first(5); }),
              testing::HasSubstr("latent has 5 values"));
  EXPECT_THAT(message([](v1::Sample& s) { s.conditioning = {}; }),
              testing::HasSubstr("conditioning has 0 values"));
  EXPECT_THAT(message([](v1::Sample& s) { s.text = s.text.first(9); }),
              testing::HasSubstr("up to 512 rows of 8"));
  EXPECT_THAT(message([](v1::Sample& s) { s.t = 1.5; }), testing::HasSubstr("noise fraction"));
  EXPECT_THAT(message([](v1::Sample& s) { std::swap(s.size.frames, s.size.height); }),
              testing::HasSubstr("none of the batches"));
  EXPECT_TRUE(m.step(std::span(&good, 1)).updated);  // as it was before
  EXPECT_EQ(m.steps(), 1);
}

TEST(Model, NamesWhatIsWrongWithASetting) {
  const SmallModel small;
  Model m = Model::open(small.path());
  const auto message = [&](auto&& f) {
    const v1::Error e = error_of(f);
    EXPECT_EQ(e.code(), ErrorCode::usage);
    return std::string(e.what());
  };
  EXPECT_THAT(message([&] { m.plan(); }), testing::HasSubstr("set_batches()"));
  EXPECT_THAT(message([&] { m.set_training({.rank = 0}); }), testing::HasSubstr("rank is 0"));
  EXPECT_THAT(message([&] { m.set_training({.optimizer = "adamx"}); }),
              testing::HasSubstr("adamw8bit"));
  EXPECT_THAT(message([&] { m.set_training({.learning_rate = std::nan("")}); }),
              testing::HasSubstr("learning_rate is nan"));
  EXPECT_THAT(message([&] { m.set_batches({{{.frames = 1, .height = 7, .width = 8}}}); }),
              testing::HasSubstr("1 x 7 x 8"));
  EXPECT_THAT(
      message([&] { m.set_batches({{{.frames = 1 << 16, .height = 1 << 16, .width = 1 << 16}}}); }),
      testing::HasSubstr("65536"));
  m.set_batches({{kSmallLatent}});
  m.start();
  EXPECT_THAT(message([&] { m.set_training({.rank = 2}); }),
              testing::HasSubstr("how it is trained is fixed"));
}

TEST(Model, WorksBesideAnotherOnAnotherThread) {
  SmallModel small;
  const std::vector<v1::Sample> samples = small.samples(2);
  const auto losses = [&] {
    Model m = small.open();
    std::vector<double> all;
    for (int i = 0; i < 5; ++i) all.push_back(m.step(samples).loss);
    return all;
  };
  const std::vector<double> alone = losses();
  std::vector<double> here, there;
  std::thread other([&] { there = losses(); });
  here = losses();
  other.join();
  EXPECT_EQ(here, alone);
  EXPECT_EQ(there, alone);
}

}  // namespace
}  // namespace ballast
