// Outputs and gradients of the transformer against a double-precision reference: derivatives of its
// loss by central differences, along a random direction for each tensor.

#include <gtest/gtest.h>

#include "core/to_size.h"
#include "tests/support/finite_differences.h"
#include "tests/support/reference_dit.h"

namespace ballast::support {
namespace {

using wan::Mode;

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

// f32 sums of a few dozen terms, some twenty operations deep: about 1e-6 of the largest value. A
// wrong formula is off by 1e-2 and more.
constexpr double kTolerance = 2e-5;

double norm(const std::vector<double>& v) { return std::sqrt(dot(v, v)); }

class DitGradients : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test_device() == Device::cuda) GTEST_SKIP() << "bf16 is too coarse for these differences";
  }
  TinyDit make(Mode mode) const { return TinyDit(config_, file_.path(), batch_, {.mode = mode}); }
  double loss() const { return reference_.loss(samples_, batch_.timesteps); }
  static std::vector<double> values(const TensorView& v) {
    return {v.as<float>(), v.as<float>() + v.elements()};
  }

  // Derivative along a direction; values is what the reference reads.
  void expect_derivative(const std::string& name, std::vector<double>& values,
                         const std::vector<double>& gradient) {
    const auto d =
        widened(normal_values("direction." + name, static_cast<std::int64_t>(values.size()), 1));
    const std::vector<double> at = values;
    const auto along = [&](double h) {
      for (std::size_t i = 0; i < at.size(); ++i) values[i] = at[i] + h * d[i];
      return loss();
    };
    constexpr double kStep = 1e-4;  // errors: kStep^2 of the third derivative, 1e-16 / kStep
    const double derivative = (along(kStep) - along(-kStep)) / (2 * kStep);
    values = at;
    EXPECT_GT(norm(gradient), 0) << name;
    EXPECT_NEAR(dot(gradient, d), derivative, 1e-4 * norm(gradient) + 1e-7) << name;
  }

  wan::Config config_ = config();
  TinyCheckpoint file_{config_};
  TinyBatch batch_ = tiny_batch({{2, 4, 6}, {1, 4, 4}}, config_.text_len);
  ref::Dit reference_ = reference_dit(config_);
  std::vector<ref::DitSample> samples_ = reference_samples(config_, batch_);
};

TEST_F(DitGradients, OutputsAndLossMatchTheReference) {
  for (const Mode mode : {Mode::infer, Mode::full}) {
    TinyDit dit = make(mode);
    dit.step();
    for (std::size_t i = 0; i < samples_.size(); ++i) {
      const auto ours = values(dit.view(dit.io().runs[0].samples[i].output));
      const auto expected = reference_.forward(samples_[i], batch_.timesteps);
      ASSERT_EQ(ours.size(), expected.size());
      double most = 0;
      for (const double x : expected) most = std::max(most, std::abs(x));
      for (std::size_t k = 0; k < ours.size(); ++k) {
        EXPECT_NEAR(ours[k], expected[k], kTolerance * most) << "sample " << i << " at " << k;
      }
    }
    if (mode == Mode::full) {
      EXPECT_NEAR(dit.loss(), loss(), kTolerance * loss());
    }
  }
}

TEST_F(DitGradients, OfEveryWeightMatchDifferences) {
  TinyDit dit = make(Mode::full);
  dit.step();
  for (const NamedGradient& g : dit.io().gradients) {
    expect_derivative(g.name, reference_.weights().at(g.name), values(dit.view(g.gradient)));
  }
}

TEST_F(DitGradients, OfInputsMatchDifferences) {
  TinyDit dit = make(Mode::full);
  dit.step();
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    const wan::DitSampleIo& io = dit.io().runs[0].samples[i];
    expect_derivative("latent", samples_[i].latent, values(dit.view(io.dlatent)));
    expect_derivative("context", samples_[i].context, values(dit.view(io.dcontext)));
  }
}

// W + s B A with s = alpha / rank.
std::vector<double> adapted(std::vector<double> w, const std::vector<double>& a,
                            const std::vector<double>& b) {
  const auto rank = to_size(kTinyLora.rank);
  const std::size_t outputs = b.size() / rank, inputs = a.size() / rank;
  const double s = kTinyLora.alpha / static_cast<double>(rank);
  for (std::size_t o = 0; o < outputs; ++o) {
    for (std::size_t i = 0; i < inputs; ++i) {
      for (std::size_t r = 0; r < rank; ++r) {
        w[o * inputs + i] += s * b[o * rank + r] * a[r * inputs + i];
      }
    }
  }
  return w;
}

TEST_F(DitGradients, OfEveryAdapterMatchDifferences) {
  TinyDit dit = make(Mode::lora);
  dit.step();
  const auto base = reference_.weights();
  const auto weight = [&](const AdapterIo& io) { return io.name + ".weight"; };
  for (const AdapterIo& io : dit.io().adapters) {
    reference_.weights()[weight(io)] =
        adapted(base.at(weight(io)), values(dit.view(io.a)), values(dit.view(io.b)));
  }
  EXPECT_NEAR(dit.loss(), loss(), kTolerance * loss());
  for (const AdapterIo& io : dit.io().adapters) {
    const auto a = values(dit.view(io.a)), b = values(dit.view(io.b));
    std::vector<double>& w = reference_.weights()[weight(io)];
    const auto check = [&](const char* factor, Buffer gradient, auto&& moved) {
      const auto g = values(dit.view(gradient));
      const auto d =
          widened(normal_values(io.name + factor, static_cast<std::int64_t>(g.size()), 1));
      const auto along = [&](double h) {
        w = moved(d, h);
        return loss();
      };
      const double derivative = (along(1e-4) - along(-1e-4)) / 2e-4;
      EXPECT_GT(norm(g), 0) << io.name << factor;
      EXPECT_NEAR(dot(g, d), derivative, 1e-4 * norm(g) + 1e-7) << io.name << factor;
    };
    const auto plus = [](std::vector<double> v, const std::vector<double>& d, double h) {
      for (std::size_t i = 0; i < v.size(); ++i) v[i] += h * d[i];
      return v;
    };
    check(".A", io.da, [&](const std::vector<double>& d, double h) {
      return adapted(base.at(weight(io)), plus(a, d, h), b);
    });
    check(".B", io.db, [&](const std::vector<double>& d, double h) {
      return adapted(base.at(weight(io)), a, plus(b, d, h));
    });
    w = adapted(base.at(weight(io)), a, b);
  }
}

// With B = 0 the network is the frozen one, and dB = s dW A^T, dA = 0. In Mode::lora the gradient
// of the first block's input is not computed; in Mode::full it is.
TEST_F(DitGradients, AdaptersAgreeWithTheGradientsOfTheirWeights) {
  TinyDit full = make(Mode::full), lora = make(Mode::lora);
  full.step();
  std::map<std::string, std::vector<double>> dweight;
  for (const NamedGradient& g : full.io().gradients) {
    dweight[g.name] = values(full.view(g.gradient));
  }
  for (const AdapterIo& io : lora.io().adapters) {
    std::memset(lora.view(io.b).data, 0, lora.view(io.b).bytes());
  }
  lora.step();
  EXPECT_EQ(full.loss(), lora.loss());
  for (const AdapterIo& io : lora.io().adapters) {
    const auto a = values(lora.view(io.a)), db = values(lora.view(io.db));
    const auto& dw = dweight.at(io.name + ".weight");
    const auto rank = to_size(kTinyLora.rank);
    const std::size_t inputs = a.size() / rank;
    std::vector<double> expected(db.size());
    for (std::size_t k = 0; k < db.size(); ++k) {
      for (std::size_t i = 0; i < inputs; ++i) {
        expected[k] += 2 * dw[k / rank * inputs + i] * a[k % rank * inputs + i];
      }
    }
    for (std::size_t k = 0; k < db.size(); ++k) {
      EXPECT_NEAR(db[k], expected[k], kTolerance * norm(expected)) << io.name << " at " << k;
    }
    EXPECT_EQ(norm(values(lora.view(io.da))), 0) << io.name;
  }
}

TEST_F(DitGradients, BatchIsTheWeightedSumOfItsSamples) {
  TinyDit both = make(Mode::full);
  both.step();
  std::vector<std::unique_ptr<TinyDit>> alone;
  std::vector<double> share;
  for (std::size_t i = 0; i < 2; ++i) {
    TinyBatch one = batch_;
    one.latents = {batch_.latents[i]};
    one.rows = {batch_.rows[i]};
    one.text_lens = {batch_.text_lens[i]};
    one.first = i;
    alone.push_back(
        std::make_unique<TinyDit>(config_, file_.path(), one, TinyJob{.mode = Mode::full}));
    alone.back()->step();
    EXPECT_EQ(values(alone.back()->view(alone.back()->io().runs[0].samples[0].output)),
              values(both.view(both.io().runs[0].samples[i].output)));
    share.push_back(static_cast<double>(batch_.latents[i].tokens()) / 16);  // of 12 + 4 tokens
  }
  EXPECT_NEAR(both.loss(), share[0] * alone[0]->loss() + share[1] * alone[1]->loss(), 1e-12);
  for (std::size_t g = 0; g < both.io().gradients.size(); ++g) {
    const auto sum = values(both.view(both.io().gradients[g].gradient));
    const auto a = values(alone[0]->view(alone[0]->io().gradients[g].gradient));
    const auto b = values(alone[1]->view(alone[1]->io().gradients[g].gradient));
    for (std::size_t k = 0; k < sum.size(); ++k) {
      EXPECT_NEAR(sum[k], share[0] * a[k] + share[1] * b[k], kTolerance * norm(sum))
          << both.io().gradients[g].name << " at " << k;
    }
  }
}

}  // namespace
}  // namespace ballast::support
