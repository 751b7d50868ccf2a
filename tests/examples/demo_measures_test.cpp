#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/random.h"
#include "core/to_size.h"
#include "examples/demo_model/energy.h"
#include "examples/demo_model/seen.h"
#include "io/safetensors_writer.h"
#include "tests/support/temp_dir.h"

namespace ballast::test {
namespace {

using Samples = std::vector<std::vector<float>>;

// So many samples of 16 independent normal numbers.
Samples normal_samples(std::size_t count, float mean, float deviation, std::uint64_t seed) {
  Samples all(count, std::vector<float>(16));
  for (std::size_t i = 0; i < count; ++i) {
    fill_normal(random_source(seed, "energy", static_cast<std::int64_t>(i), "sample"), 0,
                all[i].data(), 16);
    for (float& v : all[i]) v = mean + deviation * v;
  }
  return all;
}

TEST(DemoEnergy, OfTwoAndTwoSamplesIsTheFormula) {
  // Lengths: between them 3, 2, 1 and 0; within x 2, within y 1.
  const Samples x = {{3, 3}, {1, 1}}, y = {{0, 0}, {1, 1}};
  const demo::Energy e = demo::energy_of(x, y);
  const double between = (3 + 2 + 1 + 0) / 4.;
  EXPECT_NEAR(e.distance, 1 - (2. + 1.) / (2 * between), 1e-12);
  EXPECT_NEAR(e.variety, 2, 1e-12);
}

TEST(DemoEnergy, IsZeroOnAverageForOneDistributionAndGrowsWithMeanAndSpread) {
  double same = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    same +=
        demo::energy_of(normal_samples(8, 0, 1, 2 * seed), normal_samples(8, 0, 1, 2 * seed + 1))
            .distance /
        100;
  }
  EXPECT_NEAR(same, 0, 0.008);
  const Samples y = normal_samples(40, 0, 1, 100);
  const auto distance = [&](float mean, float deviation) {
    return demo::energy_of(normal_samples(40, mean, deviation, 101), y).distance;
  };
  EXPECT_GT(distance(0.5f, 1), 0.03);
  EXPECT_GT(distance(1, 1), 2 * distance(0.5f, 1));
  EXPECT_GT(distance(0, 0.3f), 0.03);  // alike, but all in the middle
  EXPECT_LT(demo::energy_of(normal_samples(40, 0, 0.3f, 101), y).variety, 0.4);
}

// Sets are compared prompt by prompt: what is common to all sets of a prompt is no error.
TEST(DemoEnergy, ChangesAgainstTheFirstSetArePaired) {
  const TempDir dir;
  const auto files = [&](const char* name, float easy, float hard) {
    std::vector<std::string> paths;
    for (const auto& [prompt, mean] : {std::pair("easy", easy), std::pair("hard", hard)}) {
      std::size_t n = 0;
      for (const std::vector<float>& v : normal_samples(12, mean, 1, hash_of(name))) {
        paths.push_back(dir.path(fmt::format("{}-{}-{}.safetensors", name, prompt, n++)));
        SafetensorsWriter writer({.metadata = {{"ballast.prompt", prompt}}});
        writer.add("latent", DType::f32, {std::ssize(v)}, std::as_bytes(std::span(v)));
        writer.write(paths.back());
      }
    }
    return paths;
  };
  std::vector<std::string> of = files("before", 1, 3);
  for (const std::string& path : files("after", 0.5f, 2.5f)) of.push_back(path);
  const auto sets = demo::energies(files("teacher", 0, 0), of);
  ASSERT_EQ(sets.size(), 2u);
  EXPECT_EQ(sets[0].change, 0);
  EXPECT_EQ(sets[0].change_error, 0);
  EXPECT_NEAR(sets[1].change, sets[1].mean.distance - sets[0].mean.distance, 1e-12);
  EXPECT_LT(sets[1].change, 0);
  EXPECT_LT(sets[1].change_error, 0.5 * sets[1].error);
}

std::vector<std::vector<std::uint8_t>> drawn(const demo::Clip& c) {
  std::vector<std::vector<std::uint8_t>> frames;
  for (const std::int64_t f : {0, 6, 12}) frames.push_back(demo::draw(c, f));
  return frames;
}

TEST(DemoSeen, EveryDrawnClipShowsItsCaptionAndNoOther) {
  const std::vector<demo::Clip> all = demo::clips_of("shapes", 3, 1);
  for (std::size_t i = 0; i < all.size(); i += 7) {  // passes every form, colour and motion
    const demo::Clip& c = all[i];
    const auto frames = drawn(c);
    const std::string text = demo::caption(c);
    const auto asked = demo::asked_by(text);
    ASSERT_TRUE(asked) << text;
    const demo::Seen s = demo::seen_in(frames, *asked);
    EXPECT_TRUE(s.colour && s.form && s.motion) << text;
    EXPECT_GT(s.overlap, 0.85) << text;
    demo::Clip other = c;
    other.colour = (c.colour + 1) % 6;
    EXPECT_FALSE(demo::seen_in(frames, other).colour) << text;
    other.form = demo::kForms[(to_size(c.form) + 1) % demo::kForms.size()];
    EXPECT_FALSE(demo::seen_in(frames, other).form) << text;
    other.motion = (c.motion + 1) % demo::motions().size();
    EXPECT_FALSE(demo::seen_in(frames, other).motion) << text;
  }
  EXPECT_FALSE(demo::asked_by("a red circle"));
}

TEST(DemoSeen, NothingIsSeenInGroundInNoiseAndInAStillPicture) {
  const demo::Clip asked = *demo::asked_by("a red circle moves right");
  std::vector<std::uint8_t> ground(demo::kSide * demo::kSide * 3), noise(ground.size());
  for (std::size_t i = 0; i < ground.size(); ++i) {
    ground[i] = demo::kGround[i % 3];
    noise[i] = static_cast<std::uint8_t>(random_source(1, "noise", 0, "frame").word(i));
  }
  EXPECT_FALSE(demo::seen_in(std::vector{ground, ground, ground}, asked).colour);
  const demo::Seen in_noise = demo::seen_in(std::vector{noise, noise, noise}, asked);
  EXPECT_FALSE(in_noise.colour || in_noise.form || in_noise.motion);
  const auto frame = demo::draw(asked, 6);
  const demo::Seen still = demo::seen_in(std::vector{frame, frame, frame}, asked);
  EXPECT_TRUE(still.colour && still.form);
  EXPECT_FALSE(still.motion);
}

}  // namespace
}  // namespace ballast::test
