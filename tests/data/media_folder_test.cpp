#include "data/media_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "data/latent_cache.h"
#include "tests/support/errors.h"
#include "tests/support/tiny_cache.h"

namespace ballast::data {
namespace {

using test::all_notes;
using test::counted;
using test::kQuickly;
using test::TempDir;
using test::tiny_needs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Visited {
  std::vector<std::string> names;
  std::vector<std::vector<std::string>> captions;
  std::vector<std::string> notes;
};

Visited visit(const TempDir& dir, const CaptionOptions& options = {}) {
  Visited v;
  visit_media(
      dir.path(), options,
      [&](const MediaItem& item) {
        v.names.push_back(item.name);
        v.captions.push_back(item.captions);
      },
      v.notes);
  return v;
}

TEST(MediaFolder, ListsMediaWithTheirCaptions) {
  const TempDir dir;
  dir.write("b.mp4", "x");
  dir.write("b.txt", " two words\nand a line \n");
  dir.write("a.png", "x");
  dir.write("a.txt", "one");
  dir.write("lonely.mov", "x");
  dir.write(".hidden.mp4", "x");
  dir.write("below/c.mp4", "x");
  for (const char* other : {"x.npz", "x.json", "x.parquet", "x.bak", "x.db"}) dir.write(other, "x");
  const Visited v = visit(dir, {.prefix = "P: "});
  EXPECT_THAT(v.names, ElementsAre("a.png", "b.mp4"));
  EXPECT_THAT(v.captions[1], ElementsAre("P: two words\nand a line"));
  ASSERT_EQ(v.notes.size(), 1u);
  EXPECT_THAT(v.notes[0], HasSubstr("1 files without a caption are left out, lonely.mov first"));
  const Visited all = visit(dir, {.skip_empty = false});
  ASSERT_EQ(all.names.size(), 3u);
  EXPECT_THAT(all.captions[2], ElementsAre(""));
}

TEST(MediaFolder, CaptionsJsonReplacesTextFiles) {
  const TempDir dir;
  dir.write("a.mp4", "x");
  dir.write("b.mp4", "x");
  dir.write("a.txt", "not this");
  dir.write("captions.json", R"({"a.mp4": ["one", " two "], "b.mp4": "three", "gone.mp4": []})");
  const Visited v = visit(dir);
  EXPECT_THAT(v.captions[0], ElementsAre("one", "two"));
  EXPECT_THAT(v.captions[1], ElementsAre("three"));
}

TEST(MediaFolder, ShuffledCaptionsHaveTheSamePartsInAFixedOrder) {
  const TempDir dir;
  dir.write("a.mp4", "x");
  dir.write("a.txt", "red, green, blue, white, black, grey");
  const CaptionOptions options{.prefix = "p, ", .shuffles = 3};
  const Visited v = visit(dir, options);
  ASSERT_EQ(v.captions[0].size(), 3u);
  EXPECT_EQ(v.captions, visit(dir, options).captions);
  EXPECT_NE(v.captions[0][0], v.captions[0][1]);
  for (std::string c : v.captions[0]) {
    EXPECT_TRUE(c.starts_with("p, "));
    std::string sorted = c.substr(3), original = "red, green, blue, white, black, grey";
    EXPECT_EQ(sorted.size(), original.size());
    for (const char* part : {"red", "green", "blue", "white", "black", "grey"}) {
      EXPECT_THAT(sorted, HasSubstr(part));
    }
  }
  EXPECT_EQ(shuffled_caption("whole", ", ", "a", 0), "whole");
  EXPECT_EQ(shuffled_caption("a, b", "", "a", 0), "a, b");
}

TEST(MediaFolder, UnreadableCaptionsAreNamed) {
  const TempDir dir;
  dir.write("a.mp4", "x");
  dir.write("a.txt", "caf\xe9");
  EXPECT_FAILS(visit(dir), ErrorCode::input, "a.txt: byte 3 of the caption is not UTF-8");
  std::filesystem::remove(dir.path("a.txt"));
  std::filesystem::create_directory(dir.path("a.txt"));
  EXPECT_FAILS(visit(dir), ErrorCode::io, "a.txt");
  std::filesystem::remove(dir.path("a.txt"));
  std::filesystem::create_symlink("a.txt", dir.path("a.txt"));
  EXPECT_FAILS(visit(dir), ErrorCode::io, "a.txt");
  std::filesystem::remove(dir.path("a.txt"));
  dir.write("a.txt", std::string((1 << 20) + 1, 'x'));
  EXPECT_FAILS(visit(dir), ErrorCode::input, "too many");
  dir.write("captions.json", R"({"a.mp4": ["one", 2]})");
  EXPECT_FAILS(visit(dir), ErrorCode::input, "captions.json");
  dir.write("captions.json", R"({"a.mp4": [], "a.mp4": []})");
  EXPECT_FAILS(visit(dir), ErrorCode::input, "twice");
  EXPECT_FAILS(file_names(dir.path("nowhere")), ErrorCode::io, "nowhere");
}

// A folder of media with a cache that was made by hand.
class MediaCache : public ::testing::Test {
 protected:
  MediaCache() {
    dir_.write("set.toml", "resolutions = [32]\nframe_buckets = [5]\n[[directory]]\npath = '" +
                               dir_.path("clips") + "'\n");
  }

  void add_clip(const std::string& name, const std::string& caption) {
    dir_.write("clips/" + name, "media of " + name);
    dir_.write("clips/" + std::string(stem_of(name)) + ".txt", caption);
  }

  LatentOrigin origin(const std::string& name, std::int64_t frames = 9) {
    return {.cache_name = "wan",
            .media = *stamp_of(dir_.path("clips"), name),
            .media_size = {.width = 40, .height = 40, .frames = frames, .fps = 16},
            .mask = {},
            .clip_mode = "single_beginning",
            .bucket = {32, 32, 5}};
  }

  std::string cache() { return cache_folder(dir_.path("clips"), "wan"); }

  void cache_latent(const std::string& name) {
    const std::vector<float> values = counted(2 * 2 * 4 * 4, 1);
    write_latent(cache(), origin(name), {.shape = {2, 2, 4, 4}, .latent = values}, kQuickly);
  }

  void cache_text(const std::string& name, const std::string& caption, std::int64_t number = 0) {
    const std::vector<float> rows = counted(6, 0);
    write_text(cache(), "wan", text_name(name, number),
               {.tokens = 2, .dim = 3, .rows = rows, .caption = caption}, kQuickly);
  }

  std::unique_ptr<Dataset> open(bool planning = false, bool trust = false) {
    DatasetRequest r{.path = dir_.path("set.toml"), .needs = tiny_needs()};
    r.planning = planning;
    r.trust_cache = trust;
    return open_dataset(r);
  }

  TempDir dir_;
};

TEST_F(MediaCache, IsUsedWhereItIsWhole) {
  add_clip("a.mp4", "one");
  add_clip("b.mp4", "two");
  for (const auto& [name, caption] : {std::pair{"a.mp4", "one"}, {"b.mp4", "two"}}) {
    cache_latent(name);
    cache_text(name, caption);
  }
  const auto d = open();
  EXPECT_EQ(test::occurrences(*d), (std::map<std::string, int>{{"clips/a.mp4@32x32x5#0", 1},
                                                               {"clips/b.mp4@32x32x5#0", 1}}));
  EXPECT_EQ(test::read_sample(*d, tiny_needs(), 0).latent, counted(64, 1));
  EXPECT_TRUE(d->fully_cached());
}

TEST_F(MediaCache, IsNotUsedForMediaOrCaptionsThatChanged) {
  add_clip("a.mp4", "one");
  EXPECT_FAILS(open(), ErrorCode::input, "not cached yet");
  cache_latent("a.mp4");
  EXPECT_FAILS(open(), ErrorCode::input, "text/a.mp4#0");
  cache_text("a.mp4", "one");
  EXPECT_NO_THROW(open());

  dir_.write("clips/a.txt", "another");
  EXPECT_FAILS(open(), ErrorCode::input, "of another caption");
  EXPECT_NO_THROW(open(false, true)) << "trusted";
  dir_.write("clips/a.txt", "one");

  dir_.write("clips/a.mp4", "media of a.mp4, cut anew");
  EXPECT_FAILS(open(), ErrorCode::input, "not cached yet");
  const auto plan = open(true);
  EXPECT_FALSE(plan->fully_cached());
  EXPECT_THAT(all_notes(*plan), HasSubstr("1 of its items is not cached yet"));
  EXPECT_EQ(plan->largest_allowed_bucket()->shape, (LatentShape{2, 2, 4, 4}));
  EXPECT_EQ(plan->largest_allowed_bucket()->items, 0);
}

TEST_F(MediaCache, WithABrokenFileCountsAsNotCached) {
  add_clip("a.mp4", "one");
  cache_latent("a.mp4");
  cache_text("a.mp4", "one");
  const std::string path = latent_path(cache(), latent_name("a.mp4", {32, 32, 5}));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 3);
  EXPECT_FAILS(open(), ErrorCode::input, "not cached yet");
  EXPECT_FALSE(open(true)->fully_cached());
}

// It is there: to encode it again, or to say that it is missing, would be wrong.
TEST_F(MediaCache, WithAFileThatCannotBeReadIsAnError) {
  add_clip("a.mp4", "one");
  cache_latent("a.mp4");
  std::filesystem::create_directories(text_path(cache(), text_name("a.mp4", 0)));
  EXPECT_FAILS(open(), ErrorCode::io, "text/a.mp4#0");
  EXPECT_FAILS(open(), ErrorCode::io, "Is a directory");
  EXPECT_FAILS(open(true), ErrorCode::io, "Is a directory");
}

TEST_F(MediaCache, RemembersWhatWasDropped) {
  add_clip("a.mp4", "one");
  add_clip("short.mp4", "two");
  cache_latent("a.mp4");
  cache_text("a.mp4", "one");
  LatentOrigin o = origin("short.mp4", 3);
  o.bucket = {};
  write_dropped(cache(), o, "too short");
  const auto d = open();
  EXPECT_EQ(d->samples().size(), 1u);
  EXPECT_TRUE(d->fully_cached());
  EXPECT_THAT(all_notes(*d), HasSubstr("1 files are left out (too short), short.mp4 first"));
  dir_.write("set.toml", "resolutions = [32]\nframe_buckets = [3, 5]\n[[directory]]\npath = '" +
                             dir_.path("clips") + "'\n");
  EXPECT_FAILS(open(), ErrorCode::input, "short.mp4");
}

TEST_F(MediaCache, SaysHowManyFramesOfABucketAreUsed) {
  add_clip("a.mp4", "one");
  const auto notes = [&](const std::string& buckets) {
    dir_.write("set.toml", "resolutions = [32]\n" + buckets + "\n[[directory]]\npath = '" +
                               dir_.path("clips") + "'\n");
    return all_notes(*open(true));
  };
  EXPECT_THAT(notes("frame_buckets = [1, 24, 33]"), HasSubstr("24 frames: 21 used (4n + 1)"));
  EXPECT_THAT(notes("size_buckets = [[32, 32, 80]]"), HasSubstr("80 frames: 77 used (4n + 1)"));
  EXPECT_THAT(notes("frame_buckets = [1, 5]"), ::testing::Not(HasSubstr("4n + 1")));
  const auto musubi = [&](const std::string& frames) {
    dir_.write("set.toml",
               "[[datasets]]\nresolution = [32, 32]\ncaption_extension = '.txt'\n"
               "video_directory = '" +
                   dir_.path("clips") + "'\ncache_directory = '" + dir_.path("clips") + "'\n" +
                   frames + "\n");
    return all_notes(*open(true));
  };
  EXPECT_THAT(musubi("target_frames = [1, 46]"), HasSubstr("46 frames: 45 used (4n + 1)"));
  EXPECT_THAT(musubi("frame_extraction = 'full'\nmax_frames = 100"),
              HasSubstr("100 frames: 97 used (4n + 1)"));
}

TEST_F(MediaCache, HasOneSampleWhereTwoResolutionsRoundToOneSize) {
  add_clip("a.mp4", "one");
  cache_latent("a.mp4");
  cache_text("a.mp4", "one");
  dir_.write("set.toml", "resolutions = [32, 33]\nframe_buckets = [5]\n[[directory]]\npath = '" +
                             dir_.path("clips") + "'\n");
  EXPECT_EQ(open()->samples().size(), 1u);
}

TEST_F(MediaCache, HoldsEveryCaptionOfAClip) {
  add_clip("a.mp4", "unused");
  dir_.write("clips/captions.json", R"({"a.mp4": ["one", "two"]})");
  cache_latent("a.mp4");
  cache_text("a.mp4", "one", 0);
  EXPECT_FAILS(open(), ErrorCode::input, "a.mp4#1");
  cache_text("a.mp4", "two", 1);
  EXPECT_EQ(test::occurrences(*open()), (std::map<std::string, int>{{"clips/a.mp4@32x32x5#0", 1},
                                                                    {"clips/a.mp4@32x32x5#1", 1}}));
}

TEST_F(MediaCache, FollowsTheMask) {
  add_clip("a.mp4", "one");
  dir_.write("masks/a.png", "white");
  dir_.write("set.toml", "resolutions = [32]\nframe_buckets = [5]\n[[directory]]\npath = '" +
                             dir_.path("clips") + "'\nmask_path = '" + dir_.path("masks") + "'\n");
  cache_text("a.mp4", "one");
  cache_latent("a.mp4");
  EXPECT_FAILS(open(), ErrorCode::input, "not cached yet");  // made without the mask
  LatentOrigin o = origin("a.mp4");
  o.mask = stamp_of(dir_.path("masks"), "a.png");
  const std::vector<float> values = counted(64, 1), mask(16, 0.5f);
  write_latent(cache(), o, {.shape = {2, 2, 4, 4}, .latent = values, .mask = mask}, kQuickly);
  EXPECT_TRUE(open()->has_masks());
}

TEST_F(MediaCache, MasksThatAreNotThereAreNamed) {
  add_clip("a.mp4", "one");
  cache_latent("a.mp4");
  cache_text("a.mp4", "one");
  for (const char* key : {"mask_path", "default_mask_file"}) {
    dir_.write("set.toml",
               fmt::format("resolutions = [32]\nframe_buckets = [5]\n[[directory]]\npath = '{}'\n"
                           "{} = '{}'\n",
                           dir_.path("clips"), key, dir_.path("nowhere")));
    EXPECT_FAILS(open(), ErrorCode::input, fmt::format("set.toml line 3: {} ", key));
    EXPECT_THAT(all_notes(*open(true)), HasSubstr("nowhere is not there"));
  }
}

TEST_F(MediaCache, IsPlannedForBeforeTheFolderIsThere) {
  EXPECT_FAILS(open(), ErrorCode::input, "set.toml line 3: there is no folder");
  DatasetRequest r{.path = dir_.path("set.toml"), .needs = tiny_needs()};
  r.planning = true;
  r.micro_batch = [](std::int64_t, std::int64_t, std::int64_t frames) {
    return frames > 1 ? 3 : 7;
  };
  const auto d = open_dataset(r);
  EXPECT_FALSE(d->fully_cached());
  EXPECT_THAT(all_notes(*d), HasSubstr("set.toml line 3: there is no folder"));
  EXPECT_THAT(all_notes(*d), ::testing::Not(HasSubstr("of its items")));
  EXPECT_EQ(d->largest_allowed_bucket()->shape, (LatentShape{2, 1, 4, 4}))
      << "seven images are more than three clips of two latent frames";
  EXPECT_EQ(d->largest_allowed_bucket()->micro_batch, 7);
  EXPECT_TRUE(d->epoch(0, 1).empty());
}

TEST_F(MediaCache, StandsBesideReadyMadeSamples) {
  add_clip("a.mp4", "one");
  cache_latent("a.mp4");
  cache_text("a.mp4", "one");
  test::add_sample(dir_.path("made"), "s", {2, 2, 4, 4});
  dir_.write("set.toml",
             "resolutions = [32]\nframe_buckets = [5]\n[[directory]]\npath = 'clips'\n"
             "[[directory]]\npath = 'made'\nnum_repeats = 3\n");
  const auto d = open();  // paths are found beside the file that names them
  EXPECT_EQ(d->buckets().size(), 1u);
  EXPECT_EQ(test::occurrences(*d),
            (std::map<std::string, int>{{"clips/a.mp4@32x32x5#0", 1}, {"made/s", 3}}));
}

}  // namespace
}  // namespace ballast::data
