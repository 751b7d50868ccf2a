#include "models/wan_vae/gradients.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "core/to_size.h"
#include "models/wan_vae/vae.h"
#include "ops/linear/sgemm.h"
#include "plan/runner.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_vae.h"

namespace ballast::wan_vae {
namespace {

using support::tiny_vae;
using support::write_vae;

std::vector<float> normal(std::size_t n, std::uint32_t seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> d(0, scale);
  std::vector<float> v(n);
  for (float& x : v) x = d(random);
  return v;
}

// The gradients of one network over two frames of latents, 1 x 2 positions.
class GradientRun {
 public:
  GradientRun(const std::string& path, const Config& c, Part part, bool checkpointing)
      : checkpoint_(WeightFiles::open(path)) {
    set_.backend.threads = 1;
    const Network net = part == Part::encoder ? encoder(c) : decoder(c);
    gradients_.emplace(set_,
                       GradientJob{.config = c,
                                   .part = part,
                                   .frames = 2,
                                   .height = 1,
                                   .width = 2,
                                   .checkpointing = checkpointing},
                       stored_units(net, checkpoint_, Dialect::official));
    plan_ = plan_memory(set_);
    runner_.emplace(set_, plan_);
    runner_->run("load");
    put(io().input, normal(count(io().input), 1, 0.5f));
    put(io().target, normal(count(io().target), 2, 0.5f));
  }

  const GradientIo& io() const { return gradients_->io(); }
  const MemoryPlan& plan() const { return plan_; }
  Runner& runner() { return *runner_; }
  double loss() {
    runner_->run("grad");
    return runner_->view(io().loss).as<double>()[0];
  }
  std::size_t count(Buffer b) { return to_size(runner_->view(b).elements()); }
  std::vector<float> get(Buffer b) {
    std::vector<float> v(count(b));
    runner_->read(b, std::as_writable_bytes(std::span(v)));
    return v;
  }
  void put(Buffer b, const std::vector<float>& v) {
    runner_->write(b, std::as_bytes(std::span(v)));
  }

 private:
  WeightFiles checkpoint_;
  ProgramSet set_;
  std::optional<Gradients> gradients_;
  MemoryPlan plan_;
  std::optional<Runner> runner_;
};

// Along one random direction in all given tensors, by central differences with steps h and 2 h,
// which leave h^4. Losses are about 1, and f32 networks tell them to some 1e-7: 1e-4 of a slope at
// this h.
void expect_slope(GradientRun& run, std::span<const std::pair<Buffer, Buffer>> tensors,
                  const std::string& name) {
  constexpr double h = 2e-3;
  std::vector<std::vector<float>> at, along;
  double slope = 0;
  run.loss();
  for (const auto& [value, gradient] : tensors) {
    at.push_back(run.get(value));
    along.push_back(normal(at.back().size(), static_cast<std::uint32_t>(at.size())));
    double length = 0;
    for (const float d : along.back()) length += static_cast<double>(d) * d;
    for (float& d : along.back()) d /= static_cast<float>(std::sqrt(length));
    const std::vector<float> g = run.get(gradient);
    for (std::size_t i = 0; i < g.size(); ++i) slope += static_cast<double>(g[i]) * along.back()[i];
  }
  const auto moved = [&](double by) {
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      std::vector<float> v = at[t];
      for (std::size_t i = 0; i < v.size(); ++i) v[i] += static_cast<float>(by * along[t][i]);
      run.put(tensors[t].first, v);
    }
    return run.loss();
  };
  const auto difference = [&](double step) { return (moved(step) - moved(-step)) / (2 * step); };
  const double differences = (4 * difference(h) - difference(2 * h)) / 3;
  moved(0);
  EXPECT_NEAR(slope, differences, 2e-3 * std::abs(differences) + 4e-4) << name;
}

class VaeGradients : public ::testing::TestWithParam<std::pair<Generation, Part>> {
 protected:
  test::TempDir dir_;
};

TEST_P(VaeGradients, HaveTheSameBitsWithCheckpointing) {
  const auto [generation, part] = GetParam();
  const Config c = tiny_vae(generation);
  write_vae(dir_.path("vae.safetensors"), c, Dialect::official);
  GradientRun kept(dir_.path("vae.safetensors"), c, part, false);
  GradientRun again(dir_.path("vae.safetensors"), c, part, true);
  EXPECT_EQ(kept.loss(), again.loss());
  EXPECT_EQ(kept.get(kept.io().dinput), again.get(again.io().dinput));
  for (std::size_t i = 0; i < kept.io().gradients.size(); ++i) {
    EXPECT_EQ(kept.get(kept.io().gradients[i].gradient),
              again.get(again.io().gradients[i].gradient))
        << kept.io().gradients[i].name;
  }
  // An encoder needs most where it is widest, at its first stage, where everything else is over.
  if (part == Part::decoder) {
    EXPECT_LT(again.plan().peak_of(Tier::device), kept.plan().peak_of(Tier::device));
  }
  EXPECT_EQ(again.runner().high_water(Tier::device), again.plan().peak_of(Tier::device));
}

INSTANTIATE_TEST_SUITE_P(Networks, VaeGradients,
                         ::testing::Values(std::pair(Generation::wan21, Part::encoder),
                                           std::pair(Generation::wan22, Part::encoder),
                                           std::pair(Generation::wan21, Part::decoder),
                                           std::pair(Generation::wan22, Part::decoder)));

// The decoder's are compared with the reference's (verify).
TEST(VaeEncoder, GradientsMatchFiniteDifferencesInEveryPart) {
  const test::TempDir dir;
  for (const Generation g : {Generation::wan21, Generation::wan22}) {
    Config c = tiny_vae(g);
    c.encoder_dim = 8;  // a norm over two channels bends too much for differences
    write_vae(dir.path("vae.safetensors"), c, Dialect::official);
    GradientRun run(dir.path("vae.safetensors"), c, Part::encoder, true);
    std::map<std::string, std::vector<std::pair<Buffer, Buffer>>> parts;
    for (const UnitGradient& n : run.io().gradients) {
      std::size_t end = n.name.find('.', n.name.find('.') + 1);
      const bool numbered = n.name.starts_with("encoder.downsamples.");
      if (numbered) end = n.name.find('.', end + 1);
      parts[n.name.substr(0, end)].emplace_back(n.weight, n.gradient);
    }
    EXPECT_GE(parts.size(), 8u);
    for (const auto& [name, tensors] : parts) expect_slope(run, tensors, name);
    const std::pair input(run.io().input, run.io().dinput);
    expect_slope(run, std::span(&input, 1), "input");
  }
}

}  // namespace
}  // namespace ballast::wan_vae
