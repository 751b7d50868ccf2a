#include "data/dataset_encoding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>
#include <sstream>

#include "core/error.h"
#include "core/random.h"
#include "core/to_size.h"
#include "tests/support/errors.h"
#include "tests/support/tar_file.h"
#include "tests/support/tiny_cache.h"

namespace ballast::data {
namespace {

using test::kQuickly;
using test::read_whole;
using test::TempDir;
using test::tiny_needs;

// Of a VAE of 48 channels, each with numbers of its own.
LatentStatistics own_statistics() {
  static const auto values = [] {
    VaeStatistics v;
    for (int c = 0; c < 48; ++c) {
      v.mean.push_back(static_cast<float>(c) / 48 - 0.2f);
      v.std.push_back(static_cast<float>(c) / 48 + 0.5f);
    }
    return v;
  }();
  return values.view();
}

// A media file of these tests says "WIDTH HEIGHT FRAMES FPS" and, if it is to break, at which
// frame (-2: it is described and has no decoder). Frame k of it has the value k / 100 everywhere.
class TextMedia final : public OpenMedia {
 public:
  explicit TextMedia(const FileSource& source) {
    const SourceFile file = source.open();
    std::string bytes(file.size(), '\0');
    file.read(0, std::as_writable_bytes(std::span(bytes)));
    const std::string& path = source.path;
    std::istringstream text(bytes);
    if (!(text >> info_.width >> info_.height >> info_.frames >> info_.fps)) {
      fail(ErrorCode::input, path + " is no video");
    }
    text >> broken_;
  }
  const MediaInfo& info() const override { return info_; }
  void begin(ClipPlan plan) override {
    if (broken_ == -2) fail(ErrorCode::input, "it has no decoder");
    plan_ = std::move(plan);
    clip_ = -1;
  }
  bool next() override {
    at_ = 0;
    return ++clip_ < std::ssize(plan_.clips);
  }
  void read(std::span<float> frames) override {
    const auto size = to_size(plan_.size.width * plan_.size.height * 3);
    for (; !frames.empty(); frames = frames.subspan(size)) {
      const std::int64_t k = plan_.clips[to_size(clip_)].frames.at(at_++);
      if (k == broken_) fail(ErrorCode::input, fmt::format("frame {} is broken", k));
      std::fill_n(frames.begin(), size, static_cast<float>(k) / 100);
    }
  }

 private:
  MediaInfo info_;
  ClipPlan plan_;
  std::int64_t clip_ = -1, broken_ = -1;
  std::size_t at_ = 0;
};

struct Killed {};

// Encoders that give numbers one can check, and that end the run when they are told to.
struct Encoders {
  ModelNeeds needs = tiny_needs();
  int texts = 0, clips = 0;  // encoded
  int left = -1;             // calls until the run is killed; -1: never

  void call() {
    if (left == 0) throw Killed();
    if (left > 0) --left;
  }
  EncodeText text() {
    return [this](std::span<const std::string> captions) {
      call();
      std::vector<TextRows> rows;
      for (const std::string& c : captions) {
        ++texts;
        TextRows r{.tokens = c.empty() ? 1 : 2, .dim = needs.text_dim};
        r.values.assign(to_size(r.tokens * r.dim), static_cast<float>(hash_of(c) % 100));
        rows.push_back(std::move(r));
      }
      return rows;
    };
  }
  // Every latent frame has the value of the last frame it was made from.
  EncodeVideo video() {
    return [this](std::int64_t frames, std::int64_t height, std::int64_t width,
                  const FrameSource& source) {
      call();
      const LatentShape s{needs.latent_channels, 1 + (frames - 1) / 4,
                          height / needs.spatial_stride, width / needs.spatial_stride};
      std::vector<float> latent(to_size(s.elements()));
      std::vector<float> pixels(to_size(4 * height * width * 3));
      for (std::int64_t f = 0; f < s.frames; ++f) {
        const std::int64_t count = f == 0 ? 1 : 4;
        source(f == 0 ? 0 : 4 * f - 3, count,
               std::span(pixels).first(to_size(count * height * width * 3)));
        const float value = pixels[to_size((count - 1) * height * width * 3)];
        const auto cells = to_size(s.height * s.width);
        for (std::int64_t c = 0; c < s.channels; ++c) {
          const auto at = to_size(c * s.frames + f) * cells;
          std::fill_n(latent.begin() + static_cast<std::ptrdiff_t>(at), cells, value);
        }
      }
      ++clips;
      return latent;
    };
  }
};

class Encoding : public ::testing::Test {
 protected:
  void write_set(const std::string& more = "", const std::string& resolutions = "[32]") {
    request_.path = dir_.write(
        "set.toml", "resolutions = " + resolutions + "\nframe_buckets = [1, 5]\n" + more +
                        "[[directory]]\npath = '" + dir_.path("clips") + "'\n" + directory_);
  }
  void add(const std::string& name, const std::string& media, const std::string& caption) {
    dir_.write("clips/" + name, media);
    dir_.write("clips/" + std::string(stem_of(name)) + ".txt", caption);
  }

  EncodingReport run(bool regenerate = false) {
    EncodingOptions o{.request = request_, .writing = kQuickly, .text_batch = 2};
    o.regenerate = regenerate;
    const EncodingWork work = find_encoding_work({request_, regenerate});
    EncodingReport report;
    report.skipped = work.skipped;
    encode_texts(work, o, encoders_.text(), report);
    const MediaAccess access{
        .open = [](const FileSource& source) { return std::make_unique<TextMedia>(source); },
        .mask =
            [](const std::string&, PixelSize, PixelSize, PixelSize latent) {
              return std::vector<float>(to_size(latent.width * latent.height), 0.5f);
            }};
    encode_media(work, o, encoders_.video(), access, report);
    return report;
  }

  std::map<std::string, std::string> files(const std::string& folder) {
    std::map<std::string, std::string> all;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      if (entry.is_regular_file()) all[entry.path().string()] = read_whole(entry.path().string());
    }
    return all;
  }

  TempDir dir_;
  std::string directory_;
  DatasetRequest request_{.path = {}, .needs = tiny_needs()};
  Encoders encoders_;
};

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

TEST_F(Encoding, ReadsMembersOfArchivesWhereTheyLie) {
  directory_ = "mask_path = '" + dir_.path("masks") + "'\n";
  dir_.write("masks/a.png", "mask");
  add("plain.mp4", "40 40 9 16", "beside");
  const auto pack = [&](const std::string& frames) {
    dir_.write("clips/more.tar",
               test::tar_member({.name = "in/a.txt", .data = " one \n"}) +
                   test::tar_member({.name = "in/a.mp4", .data = "40 40 " + frames + " 16"}) +
                   test::tar_member({.name = "b.png", .data = "40 40 1 0"}) +
                   test::tar_member({.name = "b.txt", .data = "two"}) +
                   test::tar_member({.name = "lonely.mp4", .data = "40 40 9 16"}) +
                   test::tar_member({.name = "torn.mp4", .data = "nothing"}) +
                   test::tar_member({.name = "torn.txt", .data = "three"}) +
                   test::tar_member({.name = "../up.mp4", .data = "40 40 9 16"}) +
                   test::tar_member({.name = "._a.mp4", .data = "hidden"}) +
                   test::tar_member({.name = "inner.tar", .data = "x"}) + test::tar_end());
  };
  pack("9");
  write_set();
  const EncodingReport report = run();
  EXPECT_EQ(report.clips, 3);
  EXPECT_EQ(report.texts, 5) << "four captions and the empty one";
  ASSERT_EQ(report.skipped.size(), 1u);
  EXPECT_EQ(report.skipped[0].path, dir_.path("clips") + "/more.tar/torn.mp4");
  EXPECT_FALSE(std::filesystem::exists(dir_.path("clips/more.tar/in")));

  const auto d = open_dataset(request_);
  ASSERT_EQ(d->samples().size(), 3u);
  EXPECT_TRUE(d->has_masks()) << "by the last part of a member's name";
  std::set<float> captions;
  for (std::uint32_t i = 0; i < 3; ++i) {
    captions.insert(test::read_sample(*d, tiny_needs(), i).context[0]);
  }
  EXPECT_EQ(captions, (std::set<float>{static_cast<float>(hash_of("one") % 100),
                                       static_cast<float>(hash_of("two") % 100),
                                       static_cast<float>(hash_of("beside") % 100)}));
  std::string notes;
  for (const std::string& n : d->notes()) notes += n + "\n";
  EXPECT_THAT(notes, ::testing::HasSubstr("1 member is left out (its name leads upwards (..))"));
  EXPECT_THAT(notes, ::testing::HasSubstr("an archive inside an archive"));
  EXPECT_THAT(notes, ::testing::HasSubstr("more.tar/lonely.mp4 first"));

  encoders_ = {};
  EXPECT_EQ(run().clips_there, 3);
  EXPECT_EQ(encoders_.clips + encoders_.texts, 0);
  pack("10");
  EXPECT_FAILS(open_dataset(request_), ErrorCode::input, "not cached yet");
  run();
  EXPECT_EQ(open_dataset(request_)->samples().size(), 3u);

  // captions.json has the names inside archives.
  dir_.write("clips/captions.json", R"({"in/a.mp4": ["x", "y"], "plain.mp4": ["z"]})");
  run();
  EXPECT_EQ(open_dataset(request_)->samples().size(), 3u);
  std::string bytes = read_whole(dir_.path("clips/more.tar"));
  bytes[600] ^= 1;
  dir_.write("clips/more.tar", bytes.substr(0, 512 + 512 + 100));
  EXPECT_FAILS(find_encoding_work({request_}), ErrorCode::input, "more.tar");
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

TEST_F(Encoding, ReadsAListOfMediaLineByLineInsideItsLimits) {
  const std::string list = dir_.write("lines.jsonl", "{\n");
  request_.path = dir_.write(
      "set.toml", "[general]\nresolution = [32, 32]\n[[datasets]]\nimage_jsonl_file = '" + list +
                      "'\ncache_directory = '" + dir_.path("images") + "'\n");
  std::filesystem::resize_file(list, 10'000'000'000);
  EXPECT_FAILS(run(), ErrorCode::input, "lines.jsonl: JSON lines");  // line 1, before the rest
  dir_.write("lines.jsonl", "\n");
  std::filesystem::resize_file(list, 10'000'000'000);
  EXPECT_FAILS(run(), ErrorCode::input, "lines.jsonl, line 2: more than 16777216 bytes");
}

TEST_F(Encoding, RefusesPathsInAListThatNameNoFile) {
  request_.path = dir_.write(
      "set.toml", "[general]\nresolution = [32, 32]\n[[datasets]]\nimage_jsonl_file = '" +
                      dir_.path("lines.jsonl") + "'\ncache_directory = '" + dir_.path("images") +
                      "'\n");
  for (const char* path : {"", "clips/a.png\\u0000.txt"}) {
    dir_.write("lines.jsonl",
               fmt::format("{{\"image_path\": \"{}\", \"caption\": \"one\"}}\n", path));
    EXPECT_FAILS(run(), ErrorCode::input, "expected the path of a file");
  }
}

TEST_F(Encoding, SkipsMediaWhoseNamesLeaveNoRoomForThoseOfACache) {
  const std::string name(240, 'n');
  add("a.png", "64 64 1 0", "one");
  add(name + ".png", "64 64 1 0", "two");
  request_.path = dir_.write(
      "set.toml",
      "[general]\nresolution = [32, 32]\n[[datasets]]\nimage_jsonl_file = '" +
          dir_.write("lines.jsonl", fmt::format("{{\"image_path\": \"clips/{}.png\", \"caption\": "
                                                "\"two\"}}\n{{\"image_path\": \"clips/a.png\", "
                                                "\"caption\": \"one\"}}\n",
                                                name)) +
          "'\ncache_directory = '" + dir_.path("images") + "'\n");
  const EncodingReport report = run();
  EXPECT_EQ(report.clips, 1);
  ASSERT_EQ(report.skipped.size(), 1u);
  EXPECT_THAT(report.skipped[0].reason, ::testing::HasSubstr("its name has 240 bytes"));
  request_.path = dir_.path("clips");
  encoders_.needs.latent_channels = 48;  // of pairs beside the media
  encoders_.needs.pair_statistics = own_statistics();
  encoders_.needs.spatial_stride = 16;
  request_.needs = encoders_.needs;
  request_.needs.pixel_multiple = 32;
  EXPECT_THAT(run().skipped.at(0).reason, ::testing::HasSubstr("its name has 240 bytes"));
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
