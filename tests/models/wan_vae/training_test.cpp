#include "models/wan_vae/training.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "core/to_size.h"
#include "fit/fit.h"
#include "models/wan_vae/training_fit_job.h"
#include "ops/linear/sgemm.h"
#include "plan/runner.h"
#include "tests/support/allocation_hook.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_vae.h"

namespace ballast::wan_vae {
namespace {

using support::tiny_vae;
using support::write_vae;

// Trains a tiny VAE on clips of two frames of latents, 1 x 2 positions.
class TrainingRun {
 public:
  TrainingRun(const std::string& path, const Config& c, bool checkpointing, double kl_weight = 1e-3,
              DType dtype = DType::f32)
      : checkpoint_(WeightFiles::open(path)) {
    set_.backend.threads = 2;
    training_.emplace(set_,
                      TrainingJob{.config = c,
                                  .clips = {{2, 1, 2}, {1, 1, 1}},
                                  .dtype = dtype,
                                  .checkpointing = checkpointing,
                                  .kl_weight = kl_weight},
                      stored_units(encoder(c), checkpoint_, Dialect::official),
                      stored_units(decoder(c), checkpoint_, Dialect::official));
    plan_ = plan_memory(set_);
    runner_.emplace(set_, plan_);
    ops::warm_up_blas(runner_->compute_threads());
    runner_->run("load");
    runner_->run("init_state");
    for (const ClipIo& clip : io().clips) fill(clip);
  }

  const TrainingIo& io() const { return training_->io(); }
  const MemoryPlan& plan() const { return plan_; }
  Runner& runner() { return *runner_; }

  // Both clips, weighed alike; with the noise of this step.
  void gradients(std::int64_t step) {
    runner_->run("zero_gradients");
    std::int64_t sample = 0;
    for (const ClipIo& clip : io().clips) {
      *runner_->view(clip.weight).as<float>() = 0.5f;
      runner_->run(clip.program, {.step = step, .seed = 5, .first_sample = sample++});
    }
    runner_->run("grad_norm");
  }
  double loss(double kl_weight = 1e-3) {
    gradients(1);
    const auto* sums = runner_->view(io().losses).as<double>();
    return sums[0] + kl_weight * sums[1];
  }
  void step(std::int64_t step) {
    gradients(step);
    runner_->run("update", {.step = step, .seed = 5, .learning_rate = 2e-3});
  }
  std::vector<float> get(Buffer b) {
    std::vector<float> v(to_size(runner_->view(b).elements()));
    runner_->read(b, std::as_writable_bytes(std::span(v)));
    return v;
  }
  void put(Buffer b, const std::vector<float>& v) {
    runner_->write(b, std::as_bytes(std::span(v)));
  }

 private:
  void fill(const ClipIo& clip) {
    std::vector<float> v(to_size(runner_->view(clip.pixels).elements()));
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = std::sin(0.013f * static_cast<float>(i));
    put(clip.pixels, v);
  }

  WeightFiles checkpoint_;
  ProgramSet set_;
  std::optional<Training> training_;
  MemoryPlan plan_;
  std::optional<Runner> runner_;
};

class VaeTraining : public ::testing::Test {
 protected:
  std::string file(const Config& c) {
    const std::string path = dir_.path("vae.safetensors");
    write_vae(path, c, Dialect::official);
    return path;
  }
  test::TempDir dir_;
};

// Through decoder, noise, KL and encoder, along one random direction of each network's tensors. As
// in gradients_test.cpp; a large weight, so that KL has its share.
TEST_F(VaeTraining, GradientsMatchFiniteDifferences) {
  Config c = tiny_vae(Generation::wan21);
  c.encoder_dim = c.decoder_dim = 8;
  constexpr double h = 2e-3, kKl = 0.3;
  TrainingRun run(file(c), c, false, kKl);
  run.loss();
  std::map<std::string, double> slopes;
  std::map<std::string, std::vector<std::pair<Buffer, std::vector<float>>>> at, along;
  std::uint32_t seed = 1;
  for (const TrainedTensor& t : run.io().trained) {
    const std::string side =
        t.updated.name.starts_with("encoder.") || t.updated.name.starts_with("conv1.") ? "encoder"
                                                                                       : "decoder";
    std::mt19937 random(seed++);
    std::normal_distribution<float> normal;
    const std::vector<float> value = run.get(t.updated.value), g = run.get(t.updated.gradient);
    std::vector<float> direction(value.size());
    const auto outputs = to_size(t.shape[0]);
    const std::size_t row = value.size() / outputs;
    const std::size_t used = to_size(t.shape.elements()) / outputs;
    double length = 0;
    for (std::size_t i = 0; i < direction.size(); ++i) {
      // Behind a row's taps stands nothing that could move.
      direction[i] = i % row < used ? normal(random) : 0;
      length += static_cast<double>(direction[i]) * direction[i];
    }
    for (float& d : direction) d *= length > 0 ? 0.3f / static_cast<float>(std::sqrt(length)) : 0;
    for (std::size_t i = 0; i < g.size(); ++i) {
      slopes[side] += static_cast<double>(g[i]) * direction[i];
    }
    at[side].emplace_back(t.updated.value, value);
    along[side].emplace_back(t.updated.value, direction);
  }
  for (const auto& [side, slope] : slopes) {
    const auto moved = [&](double by) {
      for (std::size_t t = 0; t < at[side].size(); ++t) {
        std::vector<float> v = at[side][t].second;
        for (std::size_t i = 0; i < v.size(); ++i) {
          v[i] += static_cast<float>(by * along[side][t].second[i]);
        }
        run.put(at[side][t].first, v);
      }
      return run.loss(kKl);
    };
    const auto difference = [&](double by) { return (moved(by) - moved(-by)) / (2 * by); };
    const double differences = (4 * difference(h) - difference(2 * h)) / 3;
    moved(0);
    EXPECT_NEAR(slope, differences, 5e-3 * std::abs(differences) + 4e-4) << side;
  }
}

TEST_F(VaeTraining, HasTheSameBitsWithCheckpointingAndThePlannedPeaks) {
  for (const Generation g : {Generation::wan21, Generation::wan22}) {
    const Config c = tiny_vae(g);
    const std::string path = file(c);
    TrainingRun kept(path, c, false), again(path, c, true);
    for (std::int64_t step = 1; step <= 2; ++step) {
      kept.step(step);
      again.step(step);
    }
    for (const ClipIo& clip : again.io().clips) again.runner().run(clip.measure);
    EXPECT_LT(again.plan().peak_of(Tier::device), kept.plan().peak_of(Tier::device));
    EXPECT_EQ(again.runner().high_water(Tier::device), again.plan().peak_of(Tier::device));
    for (std::size_t i = 0; i < kept.io().trained.size(); ++i) {
      EXPECT_EQ(kept.get(kept.io().trained[i].updated.value),
                again.get(again.io().trained[i].updated.value))
          << kept.io().trained[i].updated.name;
    }
  }
}

TEST_F(VaeTraining, LearnsAndAllocatesNothingInAStep) {
  const Config c = tiny_vae(Generation::wan21);
  TrainingRun run(file(c), c, true);
  const double before = run.loss();
  run.step(1);
  allocation_hook::arm();
  for (std::int64_t step = 2; step <= 40; ++step) run.step(step);
  const auto seen = allocation_hook::disarm();
  EXPECT_EQ(seen.calls(), 0) << seen.first;
  EXPECT_LT(run.loss(), 0.8 * before);
}

TEST_F(VaeTraining, InBfloat16GoesTheWayOfFloat32OnItsMasters) {
  const Config c = tiny_vae(Generation::wan22);
  const std::string path = file(c);
  TrainingRun wide(path, c, true), narrow(path, c, true, 1e-3, DType::bf16);
  // Eight bits of a number, in some forty layers.
  EXPECT_NEAR(narrow.loss(), wide.loss(), 0.05 * wide.loss());
  for (std::int64_t step = 1; step <= 8; ++step) {
    wide.step(step);
    narrow.step(step);
  }
  EXPECT_NEAR(narrow.loss(), wide.loss(), 0.05 * wide.loss());
  for (const TrainedTensor& t : narrow.io().trained) {
    EXPECT_EQ(static_cast<bool>(t.updated.narrow), t.taps > 0) << t.updated.name;
  }
}

TEST_F(VaeTraining, TakesCheckpointingWhereMemoryIsShortAndIsRefusedWithLess) {
  const Config c = tiny_vae(Generation::wan21);
  const auto planned = [&](Bytes ram, std::optional<bool> checkpointing) {
    fit::Request r;
    r.job =
        TrainingFitJob({.config = c, .clips = {{3, 8, 8}}}, planned_units(encoder(c), DType::f32),
                       planned_units(decoder(c), DType::f32));
    r.backend = {.threads = 1};
    r.budget = {.gpu = kUnlimited, .host = ram, .disk = {}};
    if (checkpointing) r.policy = training_policy(*checkpointing);
    return fit::find_plan(r);
  };
  const auto free = std::get<fit::PlannedRun>(planned(kUnlimited, {}));
  const auto lean = std::get<fit::PlannedRun>(planned(kUnlimited, true));
  EXPECT_FALSE(checkpoints(free.policy));
  EXPECT_TRUE(checkpoints(lean.policy));
  const Bytes least = lean.needed_ram();
  EXPECT_LT(least, free.needed_ram());
  EXPECT_TRUE(checkpoints(std::get<fit::PlannedRun>(planned(least, {})).policy));
  const auto refused = planned(least - Bytes{1}, {});
  ASSERT_TRUE(std::holds_alternative<Refusal>(refused));
  EXPECT_EQ(std::get<Refusal>(refused).shortages.front().needed, least);
  EXPECT_TRUE(std::holds_alternative<Refusal>(planned(least, false)));
}

}  // namespace
}  // namespace ballast::wan_vae
