// A step of DMD2 against its formulas in double, and what it holds in memory.

#include "train/recipes/dmd2_step.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/to_size.h"
#include "tests/support/finite_differences.h"
#include "tests/support/reference_dit.h"

namespace ballast::train {
namespace {

using support::dot;
using support::kTinyLora;
using support::normal_values;
using support::widened;
using Values = std::vector<double>;

wan::Config config() {
  return {.name = "tiny",
          .description = "",
          .dim = 16,
          .ffn_dim = 24,
          .heads = 2,
          .layers = 2,
          .in_dim = 3,
          .out_dim = 2,
          .freq_dim = 8,
          .text_dim = 6,
          .text_len = 3};
}

constexpr Dmd2Position kPlace = {.seed = 5, .step = 10, .run = 0, .first = 0, .samples = 2};
constexpr wan::LatentSize kLatents[] = {{2, 4, 6}, {1, 4, 4}};
// As in dit_gradients_test.cpp: f32 sums, some twenty operations deep, and here several passes.
constexpr double kTolerance = 1e-4;

double norm(const Values& v) { return std::sqrt(dot(v, v)); }

// A model with adapters of both kinds and two samples.
class Distilled {
 public:
  Distilled(const std::string& file, const Dmd2Options& options, MemoryPolicy policy = {},
            bool distilled = true)
      : checkpoint_(WeightFiles::open(file)), names_(checkpoint_) {
    set_.backend = {.device = Device::cpu, .threads = 2};
    wan::DitJob job;
    job.config = config();
    job.mode = wan::Mode::lora;
    job.policy = std::move(policy);
    job.batches = {{{kLatents[0], kLatents[1]}, 2}};
    if (distilled) {
      job.noising = wan::Noising::prepared;
      job.distil = programs_of(options);
    }
    job.lora = kTinyLora;
    job.record_update = true;
    dit_ = std::make_unique<wan::Dit>(set_, job, weight_groups(job.config, checkpoint_, names_));
    plan_ = plan_memory(set_);
    runner_ = std::make_unique<Runner>(set_, plan_);
    runner_->run("load");
    for (const AdapterIo& a : io().adapters) {
      put(a.a, fmt::format("{}.a.{}", a.name, a.expert), support::kAdapterSize);
      put(a.b, fmt::format("{}.b.{}", a.name, a.expert), support::kAdapterSize);
    }
    for (std::size_t i = 0; i < 2; ++i) {
      const wan::DitSampleIo& s = io().runs[0].samples[i];
      put(s.latent, fmt::format("data{}", i), 1);
      put(s.conditioning, fmt::format("y{}", i), 1);
      put(s.context, fmt::format("context{}", i), 1);
      const std::vector<std::int32_t> rows(to_size(runner_->view(s.timestep_row).elements()),
                                           static_cast<std::int32_t>(i));
      runner_->write(s.timestep_row, std::as_bytes(std::span(rows)));
    }
    if (!distilled) return;
    if (io().empty_context) put(io().empty_context, "empty", 1);
    step_.emplace(
        options, *dit_, *runner_,
        [this](const std::string& program, const StepValues& v) { runner_->run(program, v); });
    step_->begin_part(kPlace);
  }

  const wan::DitIo& io() const { return dit_->io(); }
  Dmd2Step& step() { return *step_; }
  double loss() { return *runner_->view(io().loss).as<double>(); }
  Values values(Buffer b) {
    const TensorView v = runner_->view(b);
    return {v.as<float>(), v.as<float>() + v.elements()};
  }
  std::uint64_t bytes_of(Role role) const {
    std::uint64_t sum = 0;
    for (std::size_t b = 0; b < set_.buffers.size(); ++b) {
      const BufferSpec& s = set_.buffers[b];
      const bool whole = to_size(s.root.id) == b;
      if (s.role == role && s.program == kPersistent && whole) sum += s.bytes;
    }
    return sum;
  }

 private:
  void put(Buffer to, const std::string& name, double scale) {
    const auto v = normal_values(name, runner_->view(to).elements(), scale);
    runner_->write(to, std::as_bytes(std::span(v)));
  }

  WeightFiles checkpoint_;
  wan::TensorMap names_;
  ProgramSet set_;
  std::unique_ptr<wan::Dit> dit_;
  MemoryPlan plan_;
  std::unique_ptr<Runner> runner_;
  std::optional<Dmd2Step> step_;
};

// The same in double: all that is shared with the engine is how random numbers are named.
class Reference {
 public:
  Reference(Distilled& ours, const Dmd2Options& options) : options_(options) {
    base_ = support::reference_dit(config()).weights();
    for (const AdapterIo& a : ours.io().adapters) {
      factors_[to_size(a.expert)][a.name] = {ours.values(a.a), ours.values(a.b)};
    }
  }

  struct Factors {
    Values a, b;
  };
  Factors& factors(const AdapterIo& a) { return factors_[to_size(a.expert)].at(a.name); }

  // By student (0), critic (1) or teacher (2), of sample i.
  Values answer(int who, std::size_t i, const Values& latent, double sigma, bool caption = true) {
    auto weights = base_;
    if (who < 2) {
      for (const auto& [name, f] : factors_[who]) {
        Values& w = weights.at(name + ".weight");
        const auto rank = to_size(kTinyLora.rank);
        const std::size_t inputs = f.a.size() / rank;
        for (std::size_t k = 0; k < w.size(); ++k) {
          for (std::size_t r = 0; r < rank; ++r) {
            w[k] += 2 * f.b[k / inputs * rank + r] * f.a[r * inputs + k % inputs];
          }
        }
      }
    }
    ref::DitSample s;
    s.size = kLatents[i];
    s.latent = latent;
    s.conditioning = widened(normal_values(fmt::format("y{}", i), kLatents[i].cells(), 1));
    s.context = widened(normal_values(caption ? fmt::format("context{}", i) : "empty", 18, 1));
    s.timestep_row.assign(to_size(kLatents[i].tokens()), 0);
    return ref::Dit(config(), std::move(weights)).forward(s, {1000 * sigma});
  }

  double sigma(std::size_t k) const { return shifted(options_.steps[k] / 1000); }
  double shifted(double t) const { return options_.shift * t / (1 + (options_.shift - 1) * t); }

  std::size_t end(const std::string& phase) const {
    const RandomSource draw = random_source(5, "dmd2." + phase, 10, "end");
    return to_size(4 * uniform(draw.word(0)));
  }
  double score(const std::string& phase, std::size_t i) const {
    const RandomSource draw =
        random_source(5, "dmd2." + phase, 10, fmt::format("score_time.{}", i));
    const double t = std::floor(1000.0 * uniform(draw.word(0))) / 1000;
    return std::min(std::max(shifted(t), options_.min_t), options_.max_t);
  }
  static Values noise(const std::string& phase, const std::string& what, std::size_t i) {
    Values n(to_size(2 * kLatents[i].cells()));
    const RandomSource source =
        random_source(5, "dmd2." + phase, 10, fmt::format("{}.{}", what, i));
    for (std::size_t e = 0; e < n.size(); ++e) n[e] = normal(source, e);
    return n;
  }
  static Values mix(const Values& x, const Values& n, double s) {
    Values y = x;
    for (std::size_t e = 0; e < y.size(); ++e) y[e] = (1 - s) * x[e] + s * n[e];
    return y;
  }
  static Values less(Values x, double s, const Values& v) {
    for (std::size_t e = 0; e < x.size(); ++e) x[e] -= s * v[e];
    return x;
  }

  // What the student sees at the end of its rollout.
  Values input(const std::string& phase, std::size_t i) {
    const std::size_t last = end(phase);
    Values x = noise(phase, "begin", i);
    if (options_.rollout == Dmd2Options::Rollout::data) {
      const Values data = widened(normal_values(fmt::format("data{}", i), std::ssize(x), 1));
      return mix(data, x, sigma(last));
    }
    for (std::size_t k = 0; k < last; ++k) {
      const Values v = answer(0, i, x, sigma(k));
      if (options_.renoise == Dmd2Options::Renoise::predicted) {
        x = less(x, sigma(k) - sigma(k + 1), v);
      } else {
        x = mix(less(x, sigma(k), v), noise(phase, fmt::format("step{}", k + 1), i), sigma(k + 1));
      }
    }
    return x;
  }
  // Its clean latent from there.
  Values sample(const std::string& phase, std::size_t i, const Values& input) {
    const double s = sigma(end(phase));
    return less(input, s, answer(0, i, input, s));
  }

  // Of both samples, where x is held: mean((v - (n - x))^2).
  double critic_loss(const std::vector<Values>& x) {
    double sum = 0;
    for (std::size_t i = 0; i < 2; ++i) {
      const Values n = noise("critic", "score", i);
      const double s = score("critic", i);
      const Values v = answer(1, i, mix(x[i], n, s), s);
      double squares = 0;
      for (std::size_t e = 0; e < v.size(); ++e) {
        squares += (v[e] - n[e] + x[i][e]) * (v[e] - n[e] + x[i][e]);
      }
      sum += squares / static_cast<double>(v.size()) / 2;
    }
    return sum;
  }

  // x - g of a student's sample.
  Values aim(std::size_t i, const Values& x) {
    const double s = score("student", i), w = options_.guidance;
    const Values noisy = mix(x, noise("student", "score", i), s);
    const Values f = less(noisy, s, answer(1, i, noisy, s));
    Values v = answer(2, i, noisy, s);
    const Values u = answer(2, i, noisy, s, false);
    for (std::size_t e = 0; e < v.size(); ++e) v[e] = u[e] + w * (v[e] - u[e]);
    const Values r = less(noisy, s, v);
    double distance = 0;
    for (std::size_t e = 0; e < x.size(); ++e) distance += std::abs(x[e] - r[e]);
    distance /= static_cast<double>(x.size());
    Values to = x;
    for (std::size_t e = 0; e < x.size(); ++e) to[e] -= (f[e] - r[e]) / distance;
    return to;
  }
  // With what the student saw and where its samples are to go held.
  double student_loss(const std::vector<Values>& inputs, const std::vector<Values>& aims) {
    double sum = 0;
    for (std::size_t i = 0; i < 2; ++i) {
      const Values x = sample("student", i, inputs[i]);
      double squares = 0;
      for (std::size_t e = 0; e < x.size(); ++e) {
        squares += (x[e] - aims[i][e]) * (x[e] - aims[i][e]);
      }
      sum += squares / 2 / static_cast<double>(x.size()) / 2;
    }
    return sum;
  }

 private:
  Dmd2Options options_;
  std::map<std::string, Values> base_;
  std::map<std::string, Factors> factors_[2];
};

// Every gradient of one set of adapters along a direction.
template <class Loss>
void expect_gradients(Distilled& ours, Reference& reference, int set, Loss&& loss) {
  for (const AdapterIo& io : ours.io().adapters) {
    if (io.expert != set) continue;
    const auto check = [&](Values& factor, Buffer gradient, const char* name) {
      const Values g = ours.values(gradient), at = factor;
      const Values d = widened(normal_values(io.name + name, std::ssize(g), 1));
      const auto along = [&](double h) {
        for (std::size_t k = 0; k < at.size(); ++k) factor[k] = at[k] + h * d[k];
        return loss();
      };
      const double derivative = (along(1e-4) - along(-1e-4)) / 2e-4;
      factor = at;
      EXPECT_GT(norm(g), 0) << io.name << name;
      EXPECT_NEAR(dot(g, d), derivative, kTolerance * norm(g) + 1e-7) << io.name << name;
    };
    check(reference.factors(io).a, io.da, ".A");
    check(reference.factors(io).b, io.db, ".B");
  }
}

class Dmd2Formulas : public ::testing::Test {
 protected:
  void SetUp() override {
    if (support::test_device() == Device::cuda) GTEST_SKIP() << "bf16 is too coarse";
  }
  support::TinyCheckpoint file_{config()};
};

TEST_F(Dmd2Formulas, CriticLearnsTheVelocityOfTheStudentsSamples) {
  const Dmd2Options options;
  Distilled ours(file_.path(), options);
  ours.step().critic(kPlace);
  Reference reference(ours, options);
  std::vector<Values> x;
  for (std::size_t i = 0; i < 2; ++i) {
    x.push_back(reference.sample("critic", i, reference.input("critic", i)));
  }
  EXPECT_NEAR(ours.loss(), reference.critic_loss(x), kTolerance * ours.loss());
  expect_gradients(ours, reference, 1, [&] { return reference.critic_loss(x); });
}

void expect_student(const std::string& file, const Dmd2Options& options) {
  Distilled ours(file, options);
  const double loss = ours.step().student(kPlace);
  Reference reference(ours, options);
  std::vector<Values> inputs, aims;
  for (std::size_t i = 0; i < 2; ++i) {
    inputs.push_back(reference.input("student", i));
    aims.push_back(reference.aim(i, reference.sample("student", i, inputs[i])));
  }
  EXPECT_NEAR(loss, reference.student_loss(inputs, aims), kTolerance * loss);
  expect_gradients(ours, reference, 0, [&] { return reference.student_loss(inputs, aims); });
}

TEST_F(Dmd2Formulas, StudentIsPulledFromTheCriticToTheTeacher) {
  Dmd2Options options;
  options.guidance = 3;
  expect_student(file_.path(), options);
}

TEST_F(Dmd2Formulas, RegressionEndsAStepWhereTheTeacherEnds) {
  Dmd2Options options;
  options.guidance = 3;
  options.teacher_steps = 2;
  Distilled ours(file_.path(), options);
  const double loss = ours.step().regress(kPlace);
  Reference reference(ours, options);
  const std::size_t end = reference.end("student");
  const double from = reference.sigma(end), to = end < 3 ? reference.sigma(end + 1) : 0;
  std::vector<Values> inputs, aims;
  for (std::size_t i = 0; i < 2; ++i) {
    inputs.push_back(reference.input("student", i));
    Values x = inputs[i];
    for (const double s : {from, (from + to) / 2}) {
      Values v = reference.answer(2, i, x, s);
      const Values u = reference.answer(2, i, x, s, false);
      for (std::size_t e = 0; e < v.size(); ++e) v[e] = u[e] + 3 * (v[e] - u[e]);
      x = Reference::less(x, (from - to) / 2, v);
    }
    for (std::size_t e = 0; e < x.size(); ++e) x[e] = (x[e] - inputs[i][e]) / (to - from);
    aims.push_back(x);
  }
  const auto expected = [&] {
    double sum = 0;
    for (std::size_t i = 0; i < 2; ++i) {
      const Values v = reference.answer(0, i, inputs[i], from);
      double squares = 0;
      for (std::size_t e = 0; e < v.size(); ++e) {
        squares += (v[e] - aims[i][e]) * (v[e] - aims[i][e]);
      }
      sum += squares / static_cast<double>(v.size()) / 2;
    }
    return sum;
  };
  EXPECT_NEAR(loss, expected(), kTolerance * loss);
  expect_gradients(ours, reference, 0, expected);
}

TEST_F(Dmd2Formulas, RolloutsMayTakeEulersStepsOrBeginWithData) {
  Dmd2Options options;
  options.renoise = Dmd2Options::Renoise::predicted;
  expect_student(file_.path(), options);
  options.rollout = Dmd2Options::Rollout::data;
  expect_student(file_.path(), options);
}

TEST_F(Dmd2Formulas, WhereScoresSayNothingTheStudentStays) {
  Dmd2Options options;
  options.min_t = options.max_t = 0;
  Distilled ours(file_.path(), options);
  EXPECT_EQ(ours.step().student(kPlace), 0);
  for (const AdapterIo& io : ours.io().adapters) {
    if (io.expert == 0) {
      EXPECT_EQ(norm(ours.values(io.da)) + norm(ours.values(io.db)), 0);
    }
  }
}

// Three models, one set of weights: as much as a LoRA's training has.
TEST_F(Dmd2Formulas, WeightsOfStudentTeacherAndCriticExistOnce) {
  for (const char* policy : {"resident", "stream1"}) {
    const Distilled three(file_.path(), {}, *find_policy(policy));
    const Distilled alone(file_.path(), {}, *find_policy(policy), false);
    EXPECT_GT(three.bytes_of(Role::weights), 0u);
    EXPECT_EQ(three.bytes_of(Role::weights), alone.bytes_of(Role::weights)) << policy;
    EXPECT_EQ(three.bytes_of(Role::weight_slots), alone.bytes_of(Role::weight_slots)) << policy;
    EXPECT_EQ(three.bytes_of(Role::adapter), 2 * alone.bytes_of(Role::adapter)) << policy;
  }
}

}  // namespace
}  // namespace ballast::train
