#include "data/dataset_encoding.h"

#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "tests/data/encoding_folder.h"
#include "tests/support/errors.h"

namespace ballast::data {
namespace {

using encoding_test::Encoding;
using encoding_test::Killed;
using encoding_test::own_statistics;
using test::tiny_needs;

TEST_F(Encoding, MakesWhatTrainingReads) {
  directory_ = "mask_path = '" + dir_.path("masks") + "'\n";
  dir_.write("masks/a.png", "mask");
  add("a.mp4", "40 40 9 16", "one");
  add("b.mp4", "40 40 9 32", "two");  // 4 frames at 16 a second: too short
  add("c.png", "40 40 1 0", "three");
  write_set();
  EXPECT_FAILS(open_dataset(request_), ErrorCode::input, "not cached yet");
  const EncodingReport report = run();
  EXPECT_EQ(report.texts, 4) << "three captions and the empty one";
  EXPECT_EQ(report.clips, 2);
  ASSERT_EQ(report.skipped.size(), 1u);
  EXPECT_EQ(report.skipped[0].path, dir_.path("clips") + "/b.mp4");
  EXPECT_EQ(report.skipped[0].reason, "too short");

  const auto d = open_dataset(request_);
  EXPECT_EQ(d->samples().size(), 2u);
  EXPECT_TRUE(d->has_empty_caption());
  EXPECT_TRUE(d->has_masks());
  for (std::uint32_t i = 0; i < 2; ++i) {
    const auto sample = test::read_sample(*d, tiny_needs(), i);
    if (d->samples()[i].id == "clips/a.mp4@32x32x5#0") {
      EXPECT_EQ(sample.latent.size(), 64u);
      EXPECT_FLOAT_EQ(sample.latent.front(), 0.0f);
      EXPECT_FLOAT_EQ(sample.latent.back(), 0.04f) << "frame 4 is the last of five";
      EXPECT_FLOAT_EQ(sample.context[0], static_cast<float>(hash_of("one") % 100));
    }
  }
  const EncodingReport again = run();
  EXPECT_EQ(again.texts + again.clips, 0);
  EXPECT_EQ(again.clips_there, 2);
  ASSERT_EQ(again.skipped.size(), 1u) << "what was dropped is told again";
  EXPECT_EQ(encoders_.clips, 2);
}

TEST_F(Encoding, OfPixelsKeepsClipsAsTheyAreAndReadsNoCaptions) {
  request_.cache_name = "wan_vae";
  request_.needs = {.latent_channels = 3,
                    .text_len = 0,
                    .text_dim = 0,
                    .pixel_multiple = 16,
                    .spatial_stride = 1,
                    .temporal_stride = 1,
                    .pixels = true};
  dir_.write("clips/a.mp4", "40 40 9 16");
  dir_.write("clips/b.mp4", "nothing");
  write_set();
  const EncodingReport report = run();
  EXPECT_EQ(report.texts, 0);
  EXPECT_EQ(report.clips, 1);
  ASSERT_EQ(report.skipped.size(), 1u);
  EXPECT_EQ(run().clips_there, 1);

  const auto values = [&] {
    const auto d = open_dataset(request_);
    EXPECT_EQ(d->samples().size(), 1u);
    EXPECT_EQ(d->buckets()[0].shape, (LatentShape{3, 5, 32, 32}));
    std::vector<float> pixels(5 * 32 * 32 * 3);
    SampleTarget to;
    to.latent = pixels;
    d->read(0, false, to);
    return pixels;
  };
  const std::vector<float> pixels = values();
  for (const std::size_t frame : {0u, 4u}) {
    // The nearest of 256 values to frame / 100.
    const float byte = std::round((static_cast<float>(frame) / 100 + 1) * 127.5f);
    EXPECT_EQ(pixels[frame * 32 * 32 * 3 + 7], byte / 127.5f - 1) << frame;
  }
  // The cache alone is a dataset too: another machine needs no media.
  request_.path = dir_.path("clips/cache/wan_vae");
  EXPECT_EQ(values(), pixels);
  request_.needs.pixel_multiple = 64;
  EXPECT_FAILS(open_dataset(request_), ErrorCode::input, "not multiples of 64");
}

TEST_F(Encoding, KilledTwentyTimesEndsWithTheSameBytes) {
  for (int i = 0; i < 25; ++i) {
    add(fmt::format("clip{}.mp4", i), fmt::format("40 40 {} 16", 5 + i), fmt::format("text {}", i));
  }
  write_set("", "[32, 64]");
  run();
  const auto whole = files(dir_.path("clips/cache"));
  EXPECT_EQ(whole.size(), 25u * 2 + 26);
  const int clips = encoders_.clips, texts = encoders_.texts;
  std::filesystem::remove_all(dir_.path("clips/cache"));

  encoders_ = {};
  int kills = 0;
  for (bool done = false; !done;) {
    encoders_.left = kills < 20 ? kills % 5 : -1;
    try {
      run();
      done = true;
    } catch (const Killed&) {
      ++kills;
    }
  }
  EXPECT_EQ(kills, 20);
  EXPECT_EQ(files(dir_.path("clips/cache")), whole);
  EXPECT_EQ(encoders_.clips, clips) << "a clip is lost only where its encoder was at it";
  EXPECT_EQ(encoders_.texts, texts);
}

TEST_F(Encoding, SkipsBrokenMediaUntilTheyChange) {
  add("a.mp4", "40 40 9 16", "one");
  add("broken.mp4", "nonsense", "two");
  add("torn.mp4", "40 40 9 16 3", "three");
  write_set("", "[32, 64]");
  const EncodingReport report = run();
  EXPECT_EQ(report.clips, 2);
  ASSERT_EQ(report.skipped.size(), 2u);
  EXPECT_THAT(report.skipped[0].reason, ::testing::HasSubstr("is no video"));
  EXPECT_EQ(report.skipped[1].reason, "frame 3 is broken");
  EXPECT_EQ(open_dataset(request_)->samples().size(), 2u) << "the others can be trained on";
  encoders_ = {};
  EXPECT_EQ(run().skipped.size(), 2u);
  EXPECT_EQ(encoders_.clips, 0);
  add("torn.mp4", "40 40 8 16", "three");
  EXPECT_EQ(run().skipped.size(), 1u);
  EXPECT_EQ(encoders_.clips, 2);
  EXPECT_EQ(open_dataset(request_)->samples().size(), 4u);
}

TEST_F(Encoding, LeavesOutWhatIsDescribedAndCannotBeDecoded) {
  add("a.mp4", "40 40 9 16", "one");
  add("b.webp", "40 40 1 0 -2", "two");
  write_set();
  const EncodingReport report = run();
  EXPECT_EQ(report.clips, 1);
  ASSERT_EQ(report.skipped.size(), 1u);
  EXPECT_EQ(report.skipped[0].reason, "it has no decoder");
  EXPECT_EQ(open_dataset(request_)->samples().size(), 1u);
  EXPECT_EQ(run().skipped.size(), 1u) << "it is told again and not tried again";
}

TEST_F(Encoding, MakesAgainWhatChangedAndAllWhenAskedTo) {
  add("a.mp4", "40 40 9 16", "one");
  add("b.mp4", "40 40 9 16", "two");
  write_set();
  run();
  encoders_ = {};
  add("a.mp4", "40 40 9 16", "other");
  dir_.write("clips/b.mp4", "40 40 10 16 ");
  run();
  EXPECT_EQ(encoders_.texts, 1);
  EXPECT_LE(encoders_.clips, 2) << "a.mp4 was written anew with its caption";
  encoders_ = {};
  run(true);
  EXPECT_EQ(encoders_.texts, 3);
  EXPECT_EQ(encoders_.clips, 2);
}

TEST_F(Encoding, TellsLatentsOfOtherStatisticsApart) {
  add("a.mp4", "40 40 9 16", "one");
  write_set();
  run();
  const VaeStatistics other{.mean = {0, 1}, .std = {1, 2}};
  request_.needs.statistics = other;
  EXPECT_FAILS(open_dataset(request_), ErrorCode::input, "not cached yet");
  encoders_ = {};
  run();
  EXPECT_EQ(encoders_.clips, 1);
  EXPECT_EQ(encoders_.texts, 0) << "captions are not normalised";
  EXPECT_EQ(open_dataset(request_)->samples().size(), 1u);
  request_.needs.statistics.std[1] = 3;
  EXPECT_FAILS(open_dataset(request_), ErrorCode::input, "not cached yet");
  request_.needs.statistics = {};
  EXPECT_FAILS(open_dataset(request_), ErrorCode::input, "not cached yet");
  // Without the VAE nobody can tell.
  request_.any_statistics = true;
  EXPECT_EQ(open_dataset(request_)->samples().size(), 1u);
  request_.any_statistics = false;
  run();
  EXPECT_EQ(open_dataset(request_)->samples().size(), 1u);
  request_.any_statistics = true;
  EXPECT_EQ(open_dataset(request_)->samples().size(), 1u);
}

TEST_F(Encoding, GivesImageToVideoModelsTheFirstFrameAndGrey) {
  request_.needs.conditioning_channels = 6;
  request_.cache_name = "wan2.2_i2v";
  add("a.mp4", "40 40 9 16", "one");
  add("b.png", "40 40 1 0", "two");
  request_.clip_mode = "single_middle";  // frames 2 to 6
  write_set();
  const EncodingReport report = run();
  ASSERT_EQ(report.skipped.size(), 1u);
  EXPECT_THAT(report.skipped[0].reason, ::testing::HasSubstr("an image"));
  const auto d = open_dataset(request_);
  ASSERT_EQ(d->samples().size(), 1u);
  const auto sample = test::read_sample(*d, request_.needs, 0);
  EXPECT_FLOAT_EQ(sample.latent.back(), 0.06f);
  ASSERT_EQ(sample.conditioning.size(), 6u * 32);
  EXPECT_FLOAT_EQ(sample.conditioning[0], 1.0f) << "mask of the first latent frame";
  EXPECT_FLOAT_EQ(sample.conditioning[4 * 32], 0.02f) << "the first frame";
  EXPECT_FLOAT_EQ(sample.conditioning[4 * 32 + 16], 0.0f) << "grey";
}

TEST_F(Encoding, FillsTheCachesOfMusubiTuner) {
  add("a.mp4", "64 32 12 16", "one");
  add("b.mp4", "64 32 3 16", "two");  // too short
  dir_.write("more/x.png", "50 40 1 0");
  dir_.write("more/lines.jsonl",
             "{\"image_path\": \"" + dir_.path("more/x.png") + "\", \"caption\": \"three\"}\n\n");
  request_.path = dir_.write(
      "set.toml",
      "[general]\nresolution = [32, 32]\ncaption_extension = '.txt'\n[[datasets]]\n"
      "video_directory = '" +
          dir_.path("clips") + "'\ncache_directory = '" + dir_.path("cache") +
          "'\ntarget_frames = [5]\nframe_extraction = 'chunk'\n[[datasets]]\nimage_jsonl_file = '" +
          dir_.path("more/lines.jsonl") + "'\ncache_directory = '" + dir_.path("images") + "'\n");
  const EncodingReport report = run();
  EXPECT_EQ(report.texts, 3);
  EXPECT_EQ(report.clips, 3);
  ASSERT_EQ(report.skipped.size(), 1u);
  EXPECT_TRUE(std::filesystem::exists(dir_.path("cache/a_00005-005_0032x0032_wan.safetensors")))
      << files(dir_.path("cache")).begin()->first;
  EXPECT_TRUE(std::filesystem::exists(dir_.path("images/x_0050x0040_wan.safetensors")));
  EXPECT_TRUE(std::filesystem::exists(dir_.path("images/x_wan_te.safetensors")));
  const auto d = open_dataset(request_);
  EXPECT_EQ(d->samples().size(), 3u);
  encoders_ = {};
  EXPECT_EQ(run().clips_there, 3);
  EXPECT_EQ(encoders_.clips + encoders_.texts, 0);
  request_.needs.statistics = {.mean = {0, 1}, .std = {1, 2}};
  EXPECT_EQ(run().clips, 3) << "normalised with other numbers: made again";
  EXPECT_EQ(run().clips_there, 3);
}

TEST_F(Encoding, WritesPairsBesideTheMedia) {
  encoders_.needs.latent_channels = 48;
  encoders_.needs.spatial_stride = 16;
  encoders_.needs.pair_statistics = own_statistics();
  request_.needs = encoders_.needs;
  request_.needs.pixel_multiple = 32;
  request_.path = dir_.path("clips");
  add("a.mp4", "70 40 7 16", "one");
  add("below/b.png", "64 64 1 0", "two");
  const EncodingReport report = run();
  EXPECT_EQ(report.texts, 2);
  EXPECT_EQ(report.clips, 2);
  const auto d = open_dataset(request_);
  ASSERT_EQ(d->samples().size(), 2u);
  const auto sample = test::read_sample(*d, request_.needs, 0);
  EXPECT_EQ(sample.latent.size(), 48u * 2 * 2 * 4) << "64 x 32 pixels, 5 frames";
  EXPECT_NEAR(sample.latent.back(), 0.04f, 1e-5) << "normalised again";
  encoders_.clips = encoders_.texts = 0;
  EXPECT_EQ(run().clips_there, 2);
  EXPECT_EQ(encoders_.clips + encoders_.texts, 0);

  request_.needs.statistics.mean.assign(48, 3);
  request_.needs.statistics.std.assign(48, 2);
  EXPECT_EQ(run().clips_there, 2) << "pairs hold latents as the VAE gave them";
  EXPECT_EQ(run(true).clips, 2);
  const auto own = test::read_sample(*open_dataset(request_), request_.needs, 0);
  EXPECT_NEAR(own.latent.back(), 0.04f, 1e-5) << "written and read with the same numbers";
  request_.needs.statistics = {};
  const auto others = test::read_sample(*open_dataset(request_), request_.needs, 0);
  EXPECT_GT(std::abs(others.latent.back() - 0.04f), 0.5f);
}

}  // namespace
}  // namespace ballast::data
