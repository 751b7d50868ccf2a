// A VAE from clips in a cache to a file that encodes. On an emulated GPU too.

#include "train/recipes/vae_run.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/to_size.h"
#include "data/latent_cache.h"
#include "infer/video_codec.h"
#include "tests/support/allocation_hook.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_vae.h"
#include "tests/support/trained_run.h"

namespace ballast::train {
namespace {

using support::read_trace;
using support::RunTrace;

class VaeRun : public ::testing::Test {
 protected:
  VaeRun() {
    for (int i = 0; i < 3; ++i) add_clip(fmt::format("long{}", i), 5, i);
    for (int i = 0; i < 2; ++i) add_clip(fmt::format("still{}", i), 1, 10 + i);
  }

  void add_clip(const std::string& name, std::int64_t frames, int phase) {
    std::vector<std::uint8_t> pixels(to_size(frames * 16 * 16 * 3));
    for (std::size_t i = 0; i < pixels.size(); ++i) {
      pixels[i] = static_cast<std::uint8_t>(
          127.5 + 100 * std::sin(0.05 * static_cast<double>(i % 768) + phase));
    }
    data::LatentOrigin origin;
    origin.media.name = name + ".mp4";
    origin.bucket = {16, 16, frames};
    data::write_pixels(dir_.path("clips"), origin,
                       {.frames = frames, .height = 16, .width = 16, .pixels = pixels},
                       Durability::process);
  }

  std::string config(const std::string& extra, const std::string& model = kNothing) {
    return dir_.write("run.toml", fmt::format("output_dir = '{}'\ndataset = '{}'\nepochs = 2\n{}\n"
                                              "[model]\ntype = 'wan_vae'\ndtype = 'float32'\n{}\n"
                                              "[optimizer]\ntype = 'adamw'\nlr = 3e-3\n",
                                              dir_.path("out"), dir_.path("clips"), extra, model));
  }

  static PreparedVae prepared(const std::string& config, std::vector<Setting> flags = {},
                              Purpose purpose = Purpose::train) {
    return prepare_vae(read_config(config, flags), support::small_machine(), purpose);
  }
  static TrainOutcome run(const std::string& config, std::vector<Setting> flags = {}) {
    PreparedVae run = prepared(config, std::move(flags));
    auto planned = std::get<fit::PlannedRun>(fit::find_plan(run.request));
    return train(std::move(run), std::move(planned), {});
  }

  static constexpr const char* kNothing =
      "init = 'random'\nreconstruction = 'l1'\nkl_weight = 1e-4\n"
      "[model.config]\ntype = '2.1'\ndim = 2\nz_dim = 3";
  test::TempDir dir_;
};

TEST_F(VaeRun, FromNothingMakesAFileThatKnowsItsLatents) {
  const TrainOutcome o = run(config("gradient_accumulation_steps = 1"));
  EXPECT_EQ(o.steps, 10);
  // Sanitizers have memory of their own.
  if (!allocation_hook::missing()) {
    EXPECT_LE(o.measured, o.planned);
  }
  const std::string file = o.folder + "/epoch2/model.safetensors";
  infer::VideoEncoder encoder(file, {.threads = 1});
  const wan_vae::Config& c = encoder.config();
  EXPECT_EQ(std::tuple(c.encoder_dim, c.decoder_dim, c.z_dim), std::tuple(2, 2, 3));
  ASSERT_EQ(c.latent_std.size(), 3u);
  // All clips were measured: what they become is 0 in the mean with variance 1, channel by channel.
  const auto run = prepared(config(""));
  std::vector<double> mean(3), square(3);
  double count = 0;
  for (std::uint32_t s = 0; s < run.dataset->samples().size(); ++s) {
    const data::LatentShape& shape = run.dataset->buckets()[run.dataset->samples()[s].bucket].shape;
    std::vector<float> pixels(to_size(shape.elements()));
    data::SampleTarget to;
    to.latent = pixels;
    run.dataset->read(s, false, to);
    const std::vector<float> z = encoder.encode(
        shape.frames, 16, 16, [&](std::int64_t first, std::int64_t n, std::span<float> out) {
          std::copy_n(pixels.begin() + first * 768, n * 768, out.begin());
        });
    const std::size_t each = z.size() / 3;
    for (std::size_t i = 0; i < z.size(); ++i) {
      mean[i / each] += z[i];
      square[i / each] += static_cast<double>(z[i]) * z[i];
    }
    count += static_cast<double>(each);
  }
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(mean[i] / count, 0, 1e-3);
    EXPECT_NEAR(square[i] / count, 1, 1e-2);
  }
}

TEST_F(VaeRun, EndsWhereAnUninterruptedRunEnds) {
  const std::string extra = "micro_batch_size_per_gpu = 1\nlr_scheduler = 'linear'\n";
  const RunTrace whole = read_trace(run(config(extra)).folder);
  ASSERT_EQ(whole.steps.size(), 10u);
  for (const int stop : {2, 5}) {  // 5: the end of an epoch
    const TrainOutcome first = run(config(fmt::format("{}max_steps = {}", extra, stop)));
    const RunTrace second =
        read_trace(run(config(extra), {{"resume", {first.folder}, "--resume"}}).folder);
    EXPECT_EQ(whole.steps, second.steps) << "stopped after " << stop;
    for (const auto& [name, bytes] : whole.files) EXPECT_EQ(second.files.at(name), bytes) << name;
  }
}

TEST_F(VaeRun, GradientCheckpointingTakesLessMemoryAndGivesTheSameBits) {
  const std::string extra = "max_steps = 2\nactivation_checkpointing = false";
  const std::vector<Setting> flag = {
      {"vae_gradient_checkpointing", {}, "--vae_gradient_checkpointing"}};
  const auto device = [&](std::vector<Setting> flags) {
    const PreparedVae p = prepared(config(extra), std::move(flags));
    return std::get<fit::PlannedRun>(fit::find_plan(p.request)).plan.peak_of(Tier::device);
  };
  EXPECT_LT(device(flag), device({}));
  const RunTrace kept = read_trace(run(config(extra)).folder);
  const RunTrace again = read_trace(run(config(extra), flag).folder);
  EXPECT_EQ(kept.steps, again.steps);
  EXPECT_EQ(kept.files, again.files);
}

TEST_F(VaeRun, AFineTuneKeepsTheStatisticsOfItsFile) {
  const TrainOutcome first = run(config("max_steps = 1"));
  const std::string file = first.folder + "/step1/model.safetensors";
  const TrainOutcome second = run(config("max_steps = 2", fmt::format("vae_path = '{}'", file)));
  const auto a = wan_vae::recognise(WeightFiles::open(file));
  const auto b = wan_vae::recognise(WeightFiles::open(second.folder + "/step2/model.safetensors"));
  EXPECT_EQ(a->config, b->config);
  EXPECT_NE(test::read_whole(file), test::read_whole(second.folder + "/step2/model.safetensors"));
}

TEST_F(VaeRun, ADecoderAloneIsTrainedBesideAnEncoderThatStaysAsItIs) {
  const TrainOutcome first = run(config("max_steps = 1"));
  const std::string file = first.folder + "/step1/model.safetensors";
  const std::string model = fmt::format("vae_path = '{}'\ntrain_encoder = false", file);
  const PreparedVae both = prepared(config("", fmt::format("vae_path = '{}'", file))),
                    one = prepared(config("", model));
  const auto device = [](const PreparedVae& p) {
    return std::get<fit::PlannedRun>(fit::find_plan(p.request)).plan.peak_of(Tier::device);
  };
  EXPECT_LT(device(one), device(both));
  const TrainOutcome o = run(config("max_steps = 3", model));
  const WeightFiles before = WeightFiles::open(file),
                    after = WeightFiles::open(o.folder + "/step3/model.safetensors");
  ASSERT_EQ(before.tensors().size(), after.tensors().size());
  for (const WeightTensor& t : before.tensors()) {
    const std::string name(t.entry->name);
    const auto bytes = [&](const WeightFiles& c) {
      std::vector<std::byte> all(c.extent(c.get(name)).bytes);
      c.read(c.get(name), all);
      return all;
    };
    const bool encoder = name.starts_with("encoder.") || name.starts_with("conv1.");
    EXPECT_EQ(bytes(before) == bytes(after), encoder) << name;
  }
}

TEST_F(VaeRun, IsPlannedWithoutAFileAndRefusedWithoutMemory) {
  const PreparedVae run = prepared(config(""), {{"ram", {"5MB"}, "--ram"}}, Purpose::plan);
  EXPECT_TRUE(std::holds_alternative<Refusal>(fit::find_plan(run.request)));
  EXPECT_FALSE(std::filesystem::exists(dir_.path("out")));
}

TEST_F(VaeRun, SaysWhatItsConfigurationLacks) {
  EXPECT_FAILS(read_config(config("", "")), ErrorCode::input, "no VAE to train");
  EXPECT_FAILS(read_config(config("", "init = 'random'")), ErrorCode::input, "[model.config]");
  EXPECT_FAILS(read_config(config("", "init = 'random'\n[model.config]\ndim = 3")),
               ErrorCode::input, "even width");
}

}  // namespace
}  // namespace ballast::train
