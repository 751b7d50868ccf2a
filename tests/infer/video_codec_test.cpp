#include "infer/video_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <sstream>

#include "core/to_size.h"
#include "tests/support/errors.h"
#include "tests/support/golden_file.h"
#include "tests/support/paths.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_vae.h"

namespace ballast::infer {
namespace {

using support::GoldenFile;
using support::SampleTensor;

std::vector<float> floats(const SampleTensor& t) {
  std::vector<float> v(to_size(t.size()));
  for (std::int64_t i = 0; i < t.size(); ++i) v[to_size(i)] = static_cast<float>(t[i]);
  return v;
}

std::string golden_path(const std::string& name) {
  return test::golden_path(name + ".safetensors");
}

// Element [c, t, h, w] of what came as [t][h][w][3].
float pixel(const std::vector<float>& frames, const Shape& s, std::int64_t i) {
  const std::int64_t plane = s[2] * s[3];
  const std::int64_t c = i / (s[1] * plane), rest = i % (s[1] * plane);
  return frames[to_size(rest * 3 + c)];
}

std::vector<float> decode(VideoDecoder& decoder, const SampleTensor& z) {
  std::vector<float> frames;
  std::int64_t next = 0;
  decoder.decode(floats(z), z.shape()[1], z.shape()[2], z.shape()[3],
                 [&](const VideoDecoder::Frames& f) {
                   EXPECT_EQ(f.first, next);
                   EXPECT_EQ(std::ssize(f.pixels), f.count * f.height * f.width * 3);
                   next += f.count;
                   frames.insert(frames.end(), f.pixels.begin(), f.pixels.end());
                 });
  return frames;
}

TEST(VideoCodec, DecodesAndEncodesWhatTheReferenceDoes) {
  for (const std::string name : {"vae21", "vae22"}) {
    const GoldenFile golden(name);
    VideoDecoder decoder(golden_path(name), {.threads = 2, .clamp = false});
    VideoEncoder encoder(golden_path(name), {.threads = 2});
    for (const std::string k : {"frames1", "frames9", "frames5"}) {
      const SampleTensor z = golden["in." + k + ".z"], want = golden["out." + k + ".decoded"];
      const std::vector<float> frames = decode(decoder, z);
      for (std::int64_t i = 0; i < want.size(); ++i) {
        ASSERT_NEAR(pixel(frames, want.shape(), i), want[i], 5e-5) << name << " " << k;
      }
      const SampleTensor video = golden["in." + k + ".video"], mu = golden["out." + k + ".mu"];
      const Shape s = video.shape();
      const std::vector<float> latent = encoder.encode(
          s[1], s[2], s[3], [&](std::int64_t first, std::int64_t count, std::span<float> to) {
            for (std::int64_t i = 0; i < std::ssize(to); ++i) {
              const std::int64_t c = i % 3, at = first * s[2] * s[3] + i / 3;
              to[to_size(i)] = static_cast<float>(video[c * s[1] * s[2] * s[3] + at]);
            }
            EXPECT_EQ(std::ssize(to), count * s[2] * s[3] * 3);
          });
      for (std::int64_t i = 0; i < mu.size(); ++i) {
        ASSERT_NEAR(latent[to_size(i)], mu[i], 4e-5) << name << " " << k;
      }
    }
  }
}

TEST(VideoCodec, ClampsPixelsUnlessToldOtherwise) {
  const GoldenFile golden("vae22");
  VideoDecoder decoder(golden_path("vae22"), {.threads = 1});
  float most = 0;
  for (const float p : decode(decoder, golden["in.frames17.z"])) most = std::max(most, std::abs(p));
  EXPECT_EQ(most, 1.0f);
}

TEST(VideoCodec, GivesTheSameBitsInEveryBudgetAndDialect) {
  const test::TempDir dir;
  for (const auto g : {wan_vae::Generation::wan21, wan_vae::Generation::wan22}) {
    const wan_vae::Config c = support::tiny_vae(g);
    support::write_vae(dir.path("a.safetensors"), c, wan_vae::Dialect::official);
    support::write_vae(dir.path("b.safetensors"), c, wan_vae::Dialect::diffusers);
    SampleTensor z(DType::f32, {c.z_dim, 4, 4, 6});
    z.fill_normal(3);
    VideoDecoder whole(dir.path("a.safetensors"), {.threads = 2});
    const std::vector<float> want = decode(whole, z);
    const Bytes resident = whole.plan(4, 6, true).needed(Tier::device);
    VideoDecoder named(dir.path("b.safetensors"), {.threads = 2});
    EXPECT_EQ(decode(named, z), want);
    Budget budget;
    budget.gpu = Bytes{resident.count * 7 / 10};
    VideoDecoder small(dir.path("a.safetensors"), {.budget = budget, .threads = 2});
    EXPECT_EQ(decode(small, z), want);
    EXPECT_NE(wan_vae::policy_of(small.plan(4, 6, true)), wan_vae::Policy());
    EXPECT_LE(small.runner()->high_water(Tier::device), budget.gpu);
  }
}

TEST(VideoCodec, NormalisesWithTheNumbersOfADiffusersConfig) {
  const test::TempDir dir;
  const wan_vae::Config c = support::tiny_vae(wan_vae::Generation::wan21);
  support::write_vae(dir.path("plain.safetensors"), c, wan_vae::Dialect::diffusers);
  dir.write("vae/config.json",
            R"({"z_dim": 3, "latents_mean": [0.5, -1, 2], "latents_std": [2, 0.25, 4]})");
  const std::string file = dir.path("vae/diffusion_pytorch_model.safetensors");
  support::write_vae(file, c, wan_vae::Dialect::diffusers);
  const auto encode = [](const std::string& path) {
    return VideoEncoder(path, {.threads = 2})
        .encode(5, 16, 24, [](std::int64_t first, std::int64_t, std::span<float> to) {
          for (std::size_t i = 0; i < to.size(); ++i) {
            to[i] = std::sin(static_cast<float>(i) + 3 * static_cast<float>(first));
          }
        });
  };
  const std::vector<float> raw = encode(dir.path("plain.safetensors"));
  const float mean[] = {0.5f, -1, 2}, std[] = {2, 0.25f, 4};
  for (const std::string& path : {dir.path("vae"), file}) {
    const std::vector<float> latent = encode(path);
    ASSERT_EQ(latent.size(), raw.size());
    const std::size_t per_channel = raw.size() / 3;
    for (std::size_t i = 0; i < raw.size(); ++i) {
      const std::size_t z = i / per_channel;
      ASSERT_NEAR(latent[i], (raw[i] - mean[z]) / std[z], 1e-5) << i;
    }
    // What is decoded is the same clip.
    const auto frames = [](const std::string& from, const std::vector<float>& of) {
      std::vector<float> all;
      VideoDecoder(from, {.threads = 2}).decode(of, 2, 2, 3, [&](const DecodedFrames& f) {
        all.insert(all.end(), f.pixels.begin(), f.pixels.end());
      });
      return all;
    };
    const std::vector<float> want = frames(dir.path("plain.safetensors"), raw);
    const std::vector<float> got = frames(path, latent);
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-4) << i;
  }
}

TEST(VideoCodec, RefusesWhatDoesNotFitAndWhatIsNoVae) {
  const test::TempDir dir;
  const wan_vae::Config c = support::tiny_vae(wan_vae::Generation::wan21);
  support::write_vae(dir.path("a.safetensors"), c, wan_vae::Dialect::official);
  Budget budget;
  budget.gpu = Bytes{1000};
  VideoDecoder decoder(dir.path("a.safetensors"), {.budget = budget});
  const auto code = [](auto&& f) {
    try {
      f();
    } catch (const Error& e) {
      return e.code();
    }
    return ErrorCode::internal;
  };
  EXPECT_EQ(code([&] { decoder.plan(4, 4, true); }), ErrorCode::refused);
  EXPECT_EQ(code([&] { decoder.decode(std::vector<float>(5), 1, 1, 1, {}); }), ErrorCode::input);
  EXPECT_EQ(code([&] { VideoDecoder(golden_path("optimizer"), {}); }), ErrorCode::input);
  VideoEncoder encoder(dir.path("a.safetensors"), {.threads = 1});
  EXPECT_EQ(code([&] { encoder.encode(6, 16, 16, {}); }), ErrorCode::input);
  EXPECT_EQ(code([&] { encoder.encode(5, 17, 16, {}); }), ErrorCode::input);
}

// With one or both tiers short: every line of advice was planned, so whoever follows it gets a
// plan.
TEST(VideoCodec, ARefusalsAdviceIsTrue) {
  const test::TempDir dir;
  const std::string path = dir.path("a.safetensors");
  support::write_vae(path, support::tiny_vae(wan_vae::Generation::wan21),
                     wan_vae::Dialect::official);
  const std::int64_t side = 8, height = 16, width = 24;
  for (const auto& [gpu, ram] :
       {std::pair(1000u, 0u), std::pair(0u, 1000u), std::pair(1000u, 2000u),
        std::pair(1000u, 1000u), std::pair(1000u, 2'000'000'000u)}) {
    SCOPED_TRACE(fmt::format("gpu {}, ram {}", gpu, ram));
    Budget budget;
    budget.gpu = Bytes{gpu};
    budget.host = Bytes{ram};
    const auto with = [&](const Budget& b) {
      return VideoDecoder(path, {.budget = b, .threads = 1});
    };
    const auto error = test::error_of([&] { with(budget).plan(height, width, true); });
    ASSERT_TRUE(error);
    ASSERT_EQ(error->code(), ErrorCode::refused);
    const std::string change = error->advice().at(0).change;
    std::istringstream words(change);
    Budget more = budget;
    for (std::string flag, value; words >> flag >> value;) {
      (flag == "--gpu" ? more.gpu : more.host) = parse_bytes(value).value();
    }
    const bool ram_bounds_all = gpu == ram;
    if (ram_bounds_all) more.gpu = more.host;
    EXPECT_EQ(change.find("--gpu") != change.npos, gpu == 1000u && !ram_bounds_all) << change;
    EXPECT_EQ(change.find("--ram") != change.npos, ram == 1000u || ram == 2000u) << change;
    const fit::PlannedRun planned = with(more).plan(height, width, true);
    EXPECT_EQ(error->advice()[0].effect, fmt::format("fits: {} of RAM", planned.needed_ram()));
  }
  // A smaller image, where one fits.
  const VideoDecoder whole(path, {.threads = 1});
  Budget small;
  small.host = whole.plan(height, width, true).needed_ram();
  VideoDecoder decoder(path, {.budget = small, .threads = 1});
  const auto error = test::error_of([&] { decoder.plan(4 * height, 4 * width, true); });
  ASSERT_TRUE(error);
  ASSERT_EQ(error->advice().size(), 2u);
  std::int64_t w = 0, h = 0;
  ASSERT_EQ(std::sscanf(error->advice()[1].change.c_str(), "%ld x %ld pixels", &w, &h), 2)
      << error->advice()[1].change;
  EXPECT_LE(decoder.plan(h / side, w / side, true).needed_ram(), small.host);
}

}  // namespace
}  // namespace ballast::infer
