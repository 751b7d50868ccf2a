#include "models/student/student.h"

#include <gtest/gtest.h>

#include <cstring>

#include "core/error.h"
#include "core/random.h"
#include "core/to_size.h"
#include "plan/runner.h"
#include "tests/ref/student.h"
#include "tests/support/test_device.h"

namespace ballast::student {
namespace {

Config tiny() {
  return {.hidden_size = 16,
          .depth = 2,
          .num_heads = 2,
          .num_channels = 3,
          .image_size = 24,
          .patch_size = 4,
          .text_max_length = 7,
          .text_dim = 10,
          .teacher_channels = 4};
}

std::vector<float> values_of(const std::string& site, std::int64_t n, double size,
                             double mean = 0) {
  std::vector<float> v(to_size(n));
  fill_normal(random_source(5, "student_test", 0, site), 0, v.data(), n);
  for (float& x : v) x = static_cast<float>(mean + size * x);
  return v;
}

std::vector<float> weight_of(const std::string& name, const Shape& shape) {
  if (shape.rank() == 1) {
    const bool gain = name.find("norm") != std::string::npos && name.ends_with("weight");
    return values_of(name, shape.elements(), 0.2, gain ? 1 : 0);
  }
  const auto inputs = static_cast<double>(shape.elements() / shape[0]);
  return values_of(name, shape.elements(), 1 / std::sqrt(inputs));
}

std::vector<double> widened(const std::vector<float>& v) { return {v.begin(), v.end()}; }

ref::Student reference(const Config& c) {
  std::map<std::string, std::vector<double>> weights;
  each_parameter(c, [&](int, const std::string& name, const Shape& shape) {
    weights[name] = widened(weight_of(name, shape));
  });
  return {c, std::move(weights)};
}

constexpr double kTimes[] = {431, 7};

struct TinySample {
  std::vector<float> latent, text, target;
};
TinySample sample(const Config& c, std::size_t i) {
  const std::string n = std::to_string(i);
  return {values_of("latent" + n, c.tokens() * c.num_channels, 1),
          values_of("text" + n, c.text_dim, 0.5),
          values_of("target" + n, c.tokens() * c.teacher_channels, 1)};
}

// A student with the weights and inputs above, and one step done.
class StudentRun {
 public:
  explicit StudentRun(Job job) {
    set_.backend = {.device = support::test_device(), .threads = 2};
    if (support::test_device() == Device::cuda) set_.backend.sm = open_gpu().sm;
    student_ = std::make_unique<Student>(set_, std::move(job));
    plan_ = plan_memory(set_);
    runner_ = std::make_unique<Runner>(set_, plan_);
    const Config& c = student_->job().config;
    for (const Parameter& p : student_->parameters()) {
      put(p.value, weight_of(p.name, set_.spec(p.value).shape));
    }
    for (std::size_t i = 0; i < student_->samples().size(); ++i) {
      const SampleIo& io = student_->samples()[i];
      const TinySample s = sample(c, i);
      put(io.latent, s.latent);
      std::vector<float> time(to_size(c.hidden_size));
      time_features(kTimes[i], time);
      put(io.time, time);
      put(io.text, s.text);
      if (io.target) put(io.target, s.target);
    }
    if (!student_->job().trains) return;
    runner_->run("init_state");
    runner_->run(Student::kZero);
    runner_->run(Student::kStep);
  }

  std::vector<float> get(Buffer b) {
    std::vector<float> v(to_size(set_.spec(b).shape.elements()));
    runner_->read(b, std::as_writable_bytes(std::span(v)));
    return v;
  }
  // Every gradient and, after an update, every weight: compared as bits.
  std::vector<float> everything() {
    std::vector<float> all;
    const auto add = [&](Buffer b) {
      const std::vector<float> v = get(b);
      all.insert(all.end(), v.begin(), v.end());
    };
    for (const Parameter& p : student_->parameters()) add(p.gradient);
    runner_->run("grad_norm");
    runner_->run("update", {.step = 1, .learning_rate = 0.01});
    for (const Parameter& p : student_->parameters()) add(p.value);
    all.push_back(static_cast<float>(loss()));
    return all;
  }
  double loss() { return *runner_->view(student_->loss()).as<double>(); }
  Student& student() { return *student_; }
  Runner& runner() { return *runner_; }
  const MemoryPlan& plan() const { return plan_; }

 private:
  void put(Buffer b, const std::vector<float>& v) {
    runner_->write(b, std::as_bytes(std::span(v)));
  }

  ProgramSet set_;
  std::unique_ptr<Student> student_;
  MemoryPlan plan_;
  std::unique_ptr<Runner> runner_;
};

TEST(StudentNetwork, HasTheParametersOfThePublishedSizes) {
  EXPECT_EQ(parameter_count(Config()), 214'203'396);
  const Config small = {.hidden_size = 256,
                        .depth = 4,
                        .num_heads = 4,
                        .num_channels = 4,
                        .image_size = 256,
                        .patch_size = 16};
  EXPECT_EQ(parameter_count(small), 4'752'132);
  std::map<std::string, Shape> shapes;
  each_parameter(Config(), [&](int, const std::string& name, const Shape& shape) {
    EXPECT_TRUE(shapes.emplace(name, shape).second) << name;
  });
  EXPECT_EQ(shapes.at("blocks.15.attn.in_proj_weight"), (Shape{3072, 1024}));
  EXPECT_EQ(shapes.at("blocks.0.mlp.2.weight"), (Shape{1024, 4096}));
  EXPECT_EQ(shapes.at("time_embed.0.bias"), (Shape{4096}));
  EXPECT_EQ(shapes.at("conv_out.weight"), (Shape{4, 1024, 3, 3}));
  EXPECT_EQ(shapes.at("output_proj.weight"), (Shape{16, 4, 1, 1}));
  EXPECT_EQ(shapes.size(), 12u + 16 * 12);
}

TEST(StudentNetwork, OutputEqualsTheReference) {
  const Config c = tiny();
  StudentRun run({.config = c, .trains = false});
  run.runner().run(Student::kPredict);
  const TinySample s = sample(c, 0);
  const std::vector<double> expected = reference(c).forward(
      {.latent = widened(s.latent), .text = widened(s.text), .target = {}, .t = kTimes[0]});
  const std::vector<float> got = run.get(run.student().samples()[0].output);
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 2e-5) << i;
}

// Three elements of every tensor: first, last, one between.
TEST(StudentNetwork, GradientsOfAllTensorsMatchFiniteDifferences) {
  const Config c = tiny();
  StudentRun run({.config = c, .batch = 2, .activations = Activations::recomputed});
  ref::Student model = reference(c);
  std::vector<ref::StudentSample> samples;
  for (std::size_t i = 0; i < 2; ++i) {
    const TinySample s = sample(c, i);
    samples.push_back({widened(s.latent), widened(s.text), widened(s.target), kTimes[i]});
  }
  EXPECT_NEAR(run.loss(), model.loss(samples), 1e-5);
  for (const Parameter& p : run.student().parameters()) {
    const std::vector<float> got = run.get(p.gradient);
    std::vector<double>& w = model.weights().at(p.name);
    ASSERT_EQ(got.size(), w.size()) << p.name;
    for (const std::size_t i : {std::size_t{0}, w.size() / 3, w.size() - 1}) {
      const double at = w[i], h = 1e-4;
      w[i] = at + h;
      const double above = model.loss(samples);
      w[i] = at - h;
      const double below = model.loss(samples);
      w[i] = at;
      const double expected = (above - below) / (2 * h);
      EXPECT_NEAR(got[i], expected, 2e-5 + 1e-3 * std::abs(expected)) << p.name << " " << i;
    }
  }
}

TEST(StudentNetwork, PoliciesGiveTheSameBits) {
  Job job = {.config = tiny(), .batch = 2};
  const std::vector<float> kept = StudentRun(job).everything();
  const auto same = [&](const Job& other) {
    const std::vector<float> got = StudentRun(other).everything();
    return got.size() == kept.size() && std::memcmp(got.data(), kept.data(), got.size() * 4) == 0;
  };
  job.activations = Activations::recomputed;
  EXPECT_TRUE(same(job));
  job.state_on_host = true;
  job.heads_per_group = 1;
  EXPECT_TRUE(same(job));
}

TEST(StudentNetwork, TouchesExactlyWhatWasPlanned) {
  StudentRun run({.config = tiny(), .batch = 2});
  run.everything();
  EXPECT_EQ(run.runner().high_water(Tier::device), run.plan().peak_of(Tier::device));
}

std::string problem(std::string_view json) {
  try {
    parse_config(json, "student.json");
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::input);
    return e.what();
  }
  return "";
}

constexpr std::string_view kGood = R"({"hidden_size":256,"depth":4,"num_heads":4,"num_channels":4,
 "image_size":256,"patch_size":16,"text_max_length":77,"text_encoder_output_dim":4096})";

TEST(StudentConfig, NeedsNeitherModelTypeNorProjectionFactor) {
  const Config c = parse_config(kGood, "student.json");
  EXPECT_EQ(c.grid(), 16);
  EXPECT_EQ(parse_config(config_text(c), "config.json"), c);
}

TEST(StudentConfig, NamesWhatIsWrongAndTheNearestName) {
  const auto with = [](std::string_view from, std::string_view to) {
    std::string text(kGood);
    return problem(text.replace(text.find(from), from.size(), to));
  };
  EXPECT_NE(with("\"depth\"", "\"detph\"").find("did you mean depth?"), std::string::npos);
  EXPECT_NE(with("\"depth\":4,", "").find("has no depth"), std::string::npos);
  EXPECT_NE(with("\"num_heads\":4", "\"num_heads\":3").find("no multiple of num_heads 3"),
            std::string::npos);
  EXPECT_NE(with("\"depth\":4", "\"depth\":-1").find("depth is -1"), std::string::npos);
  EXPECT_NE(with("\"patch_size\":16", "\"patch_size\":200").find("grid of 1 x 1"),
            std::string::npos);
  EXPECT_NE(problem(R"({"model_type":"DiT"})").find("expected WanLiteStudent"), std::string::npos);
}

}  // namespace
}  // namespace ballast::student
