#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "core/to_size.h"
#include "data/cache_file.h"
#include "data/latent_cache.h"
#include "tests/support/errors.h"
#include "tests/support/hostile_safetensors.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_cache.h"

namespace ballast::data {
namespace {

using test::add_sample;
using test::counted;
using test::kQuickly;
using test::read_sample;
using test::TempDir;
using test::tiny_needs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr LatentShape kSmall{2, 1, 2, 4};

std::unique_ptr<Dataset> open(const std::string& path, ModelNeeds needs = tiny_needs()) {
  return open_dataset({.path = path, .needs = needs});
}

TEST(SampleFolder, GivesBackWhatWasWritten) {
  const TempDir dir;
  add_sample(dir.path(), "b", {2, 3, 4, 2}, 100, 4);
  add_sample(dir.path(), "a", kSmall, 1, 2);
  const auto d = open(dir.path());
  ASSERT_EQ(d->samples().size(), 2u);
  EXPECT_TRUE(d->samples()[0].id.ends_with("/a"));
  EXPECT_EQ(d->buckets()[d->samples()[0].bucket].shape, kSmall);
  EXPECT_TRUE(d->fully_cached());
  EXPECT_FALSE(d->has_masks());
  EXPECT_FALSE(d->has_empty_caption());

  const auto a = read_sample(*d, tiny_needs(), 0);
  EXPECT_EQ(a.latent, counted(16, 1));
  EXPECT_THAT(a.context, ElementsAre(-1, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0))
      << "rows behind are zero";
  const auto b = read_sample(*d, tiny_needs(), 1);
  EXPECT_EQ(b.latent, counted(48, 100));
  EXPECT_EQ(d->largest_allowed_bucket()->shape, (LatentShape{2, 3, 4, 2}));
}

TEST(SampleFolder, StoresNarrowTypesThatAreReadAsF32) {
  const TempDir dir;
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    add_sample(dir.path(), std::string(name_of(type)), kSmall, 1, 2, {type, Durability::process});
  }
  const auto d = open(dir.path());
  for (std::uint32_t s = 0; s < 3; ++s) {
    EXPECT_EQ(read_sample(*d, tiny_needs(), s).latent, counted(16, 1)) << d->samples()[s].id;
  }
}

TEST(SampleFolder, ReadsTensorsLargerThanItsBuffer) {
  const TempDir dir;
  const LatentShape large{2, 3, 80, 82};  // 157 KB: two chunks and a part
  add_sample(dir.path(), "large", large, 5);
  const auto d = open(dir.path());
  EXPECT_EQ(read_sample(*d, tiny_needs(), 0).latent, counted(large.elements(), 5));
}

TEST(SampleFolder, AddsTheMaskChannelsOfImageToVideo) {
  const TempDir dir;
  const LatentShape shape{2, 2, 2, 2};
  const std::vector<float> latent = counted(16, 1), y = counted(16, 50), text = counted(3, 0);
  const CachedText caption{.tokens = 1, .dim = 3, .rows = text};
  write_cached_sample(
      dir.path(), "without",
      {.shape = shape, .latent = latent, .conditioning_channels = 2, .conditioning = y}, caption,
      kQuickly);
  std::vector<float> whole(32, 9.0f);
  whole.insert(whole.end(), y.begin(), y.end());
  write_cached_sample(
      dir.path(), "with_own_mask",
      {.shape = shape, .latent = latent, .conditioning_channels = 6, .conditioning = whole},
      caption, kQuickly);
  ModelNeeds needs = tiny_needs();
  needs.conditioning_channels = 6;
  const auto d = open(dir.path(), needs);
  EXPECT_EQ(read_sample(*d, needs, 0).conditioning, whole);
  std::vector<float> expected;
  for (int channel = 0; channel < 4; ++channel) {
    expected.insert(expected.end(), {1, 1, 1, 1, 0, 0, 0, 0});
  }
  expected.insert(expected.end(), y.begin(), y.end());
  EXPECT_EQ(read_sample(*d, needs, 1).conditioning, expected);
  EXPECT_EQ(read_sample(*open(dir.path()), tiny_needs(), 1).latent, latent)
      << "a text-to-video model does not mind the conditioning";
}

TEST(SampleFolder, SpreadsMasksOverFrames) {
  const TempDir dir;
  const LatentShape shape{2, 2, 2, 2};
  const std::vector<float> latent = counted(16, 1), mask = {0, 0.25, 0.5, 1}, text = counted(3, 0);
  write_cached_sample(dir.path(), "a", {.shape = shape, .latent = latent, .mask = mask},
                      {.tokens = 1, .dim = 3, .rows = text}, kQuickly);
  add_sample(dir.path(), "b", shape);
  const auto d = open(dir.path());
  EXPECT_TRUE(d->has_masks());
  EXPECT_THAT(read_sample(*d, tiny_needs(), 0).mask, ElementsAre(0, 0.25, 0.5, 1, 0, 0.25, 0.5, 1));
  EXPECT_THAT(read_sample(*d, tiny_needs(), 1).mask, ElementsAre(1, 1, 1, 1, 1, 1, 1, 1));
}

TEST(SampleFolder, HasTheEmptyCaptionWhereItWasCached) {
  const TempDir dir;
  add_sample(dir.path(), "a", kSmall);
  EXPECT_FAILS(read_sample(*open(dir.path()), tiny_needs(), 0, true), ErrorCode::input,
               "empty caption");
  const std::vector<float> text = {7, 8, 9};
  write_text_rows(empty_caption_path(dir.path()), "wan", {.tokens = 1, .dim = 3, .rows = text},
                  kQuickly);
  const auto d = open(dir.path());
  EXPECT_TRUE(d->has_empty_caption());
  EXPECT_THAT(read_sample(*d, tiny_needs(), 0, true).context,
              ElementsAre(7, 8, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_EQ(read_sample(*d, tiny_needs(), 0, true).latent, counted(16, 1));
}

TEST(SampleFolder, RefusesIdsThatAreNoFileNames) {
  const TempDir dir;
  for (const std::string id : {"", "a/b", "../a", ".hidden", "\xff"}) {
    EXPECT_FAILS(add_sample(dir.path(), id, kSmall), ErrorCode::internal, "no name");
  }
  EXPECT_NE(cache_key(std::string(300, 'x')), cache_key(std::string(301, 'x')));
  EXPECT_LT(cache_key(std::string(300, 'x')).size(), 150u);
  EXPECT_EQ(cache_key("Überfahrt 1.mp4"), "Überfahrt 1.mp4");
}

TEST(SampleFolder, WithoutTextIsAnErrorThatNamesTheFile) {
  const TempDir dir;
  add_sample(dir.path(), "a", kSmall);
  std::filesystem::remove(text_path(dir.path(), "a"));
  EXPECT_FAILS(open(dir.path()), ErrorCode::io, "text/a.safetensors");
}

TEST(SampleFolder, IgnoresWhatAnInterruptedWriteLeft) {
  const TempDir dir;
  add_sample(dir.path(), "a", kSmall);
  dir.write("latents/.b.safetensors.tmp123", "half a fi");
  dir.write("latents/notes.md", "hello");
  std::filesystem::create_directory(dir.path("latents/folder.safetensors"));
  std::filesystem::create_symlink("loop.safetensors", dir.path("latents/loop.safetensors"));
  EXPECT_EQ(open(dir.path())->samples().size(), 1u);
}

TEST(SampleFolder, RefusesSamplesOfAnotherModel) {
  const TempDir dir;
  add_sample(dir.path(), "a", kSmall);
  ModelNeeds needs = tiny_needs();
  needs.latent_channels = 16;
  EXPECT_FAILS(open(dir.path(), needs), ErrorCode::input, "cached for another model");
  needs = tiny_needs();
  needs.conditioning_channels = 6;
  EXPECT_FAILS(open(dir.path(), needs), ErrorCode::input, "no conditioning");
  needs = tiny_needs();
  needs.text_dim = 4096;
  EXPECT_FAILS(open(dir.path(), needs), ErrorCode::input, "at most 4 rows of 4096");
  needs = tiny_needs();
  needs.text_len = 1;
  EXPECT_FAILS(open(dir.path(), needs), ErrorCode::input, "at most 1 rows");
  needs = tiny_needs();
  needs.pixel_multiple = 32;
  EXPECT_FAILS(open(dir.path(), needs), ErrorCode::input, "multiples of 4");
}

TEST(SampleFolder, RefusesHostileFilesWithATypedError) {
  const TempDir dir;
  add_sample(dir.path(), "a", kSmall);
  for (const test::HostileFile& file : test::hostile_safetensors()) {
    dir.write("latents/a.safetensors", file.bytes);
    const auto error = test::error_of([&] { open(dir.path()); });
    ASSERT_TRUE(error.has_value()) << file.name;
    EXPECT_EQ(error->code(), ErrorCode::input) << file.name << ": " << error->what();
    EXPECT_THAT(error->what(), HasSubstr("latents/a.safetensors")) << file.name;
  }
}

TEST(SampleFolder, RefusesAHugeHeaderBeforeReadingIt) {
  const TempDir dir;
  add_sample(dir.path(), "a", kSmall);
  const std::string path = dir.write("latents/a.safetensors", test::with_length(90'000'000, "{"));
  std::filesystem::resize_file(path, 100'000'000);  // a hole: the bytes are really there
  EXPECT_FAILS(open(dir.path()), ErrorCode::input, "claims 90000000");
}

TEST(SampleFolder, RefusesImpossibleShapes) {
  const TempDir dir;
  add_sample(dir.path(), "a", kSmall);
  const auto with = [&](std::string_view dtype, std::string_view shape, std::size_t bytes) {
    const std::string offsets = "[0," + std::to_string(bytes) + "]";
    dir.write("latents/a.safetensors",
              test::safetensors(test::object(test::tensor("latent", dtype, shape, offsets)),
                                std::string(bytes, '\0')));
    return test::error_of([&] { open(dir.path()); });
  };
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"[2,0,2,4]", "impossible size"},  {"[2,2,4]", "[channels, frames, height, width]"},
      {"[2,1,2,2,2]", "[channels"},      {"[NaN,1,2,4]", "header_json"},
      {"[-2,1,2,4]", "header_json"},     {"[2.0,1,2,4]", "header_json"},
      {"[2,1,3,4]", "not multiples of"},
  };
  for (const auto& [shape, message] : cases) {
    const std::size_t bytes = shape == "[2,0,2,4]" ? 0 : shape == "[2,1,3,4]" ? 96 : 64;
    const auto error = with("F32", shape, bytes);
    ASSERT_TRUE(error.has_value()) << shape;
    EXPECT_EQ(error->code(), ErrorCode::input) << error->what();
    EXPECT_THAT(error->what(), HasSubstr(std::string(message))) << shape;
  }
  EXPECT_THAT(with("I32", "[2,1,2,4]", 64)->what(), HasSubstr("floating-point"));
  EXPECT_THAT(with("F8_E8M0", "[2,1,2,4]", 16)->what(), HasSubstr("floating-point"));
}

TEST(SampleFolder, NamesSampleAndFileWhenAFileChangesDuringARun) {
  const TempDir dir;
  add_sample(dir.path(), "a", kSmall);
  const auto d = open(dir.path());
  const std::string latent = latent_path(dir.path(), "a");
  const std::string whole = test::read_whole(latent);

  std::filesystem::resize_file(latent, whole.size() - 1);
  EXPECT_FAILS(read_sample(*d, tiny_needs(), 0), ErrorCode::input, "st.truncated");

  add_sample(dir.path(), "a", {2, 1, 4, 2});
  EXPECT_FAILS(read_sample(*d, tiny_needs(), 0), ErrorCode::input, "it was 2x1x2x4");

  std::filesystem::remove(latent);
  std::filesystem::create_directory(latent);
  EXPECT_FAILS(read_sample(*d, tiny_needs(), 0), ErrorCode::io, "latents/a.safetensors");

  std::filesystem::remove(latent);
  const auto gone = test::error_of([&] { read_sample(*d, tiny_needs(), 0); });
  ASSERT_TRUE(gone.has_value());
  EXPECT_EQ(gone->code(), ErrorCode::io);
  EXPECT_THAT(gone->what(), HasSubstr("latents/a.safetensors"));
  ASSERT_EQ(gone->trail().size(), 1u);
  EXPECT_THAT(gone->trail()[0], HasSubstr(d->samples()[0].id));

  dir.write("latents/a.safetensors", whole);
  EXPECT_EQ(read_sample(*d, tiny_needs(), 0).latent, counted(16, 1)) << "whole again";
}

TEST(SampleFolder, RefusesAFileThatIsCutWhileItIsRead) {
  const TempDir dir;
  add_sample(dir.path(), "a", {2, 3, 80, 82});  // three chunks
  const std::string path = latent_path(dir.path(), "a");
  const CacheFile file = CacheFile::open(path);
  const SafetensorsEntry& latent = file.get("latent");
  std::vector<float> to(to_size(latent.shape.elements()));
  // The header was read; what is left of the data is one chunk and a part, some bytes, nothing.
  for (const std::uint64_t left : {kCacheChunkBytes + 1000, std::size_t{3}, std::size_t{0}}) {
    std::filesystem::resize_file(path, latent.offset + left);
    EXPECT_FAILS(file.read(latent, to), ErrorCode::input, path + ": the file shrank");
  }
}

TEST(SampleFolder, RefusesNumbersThatAreNotFinite) {
  const TempDir dir;
  std::vector<float> latent = counted(16, 1);
  const std::vector<float> text = counted(3, 0);
  latent[5] = std::numeric_limits<float>::quiet_NaN();
  write_cached_sample(dir.path(), "a", {.shape = kSmall, .latent = latent},
                      {.tokens = 1, .dim = 3, .rows = text}, kQuickly);
  const auto d = open(dir.path());
  EXPECT_FAILS(read_sample(*d, tiny_needs(), 0), ErrorCode::input, "element 5 is nan");
}

TEST(SampleFolder, WithoutSamplesIsAnError) {
  const TempDir dir;
  EXPECT_FAILS(open(dir.path()), ErrorCode::input, "no sample was found");
  std::filesystem::create_directories(dir.path("latents"));
  std::filesystem::create_directories(dir.path("text"));
  EXPECT_FAILS(open(dir.path()), ErrorCode::input, "the data set is empty");
  EXPECT_FAILS(open(dir.path("nowhere.toml")), ErrorCode::io, "nowhere.toml");
}

TEST(SampleFolder, IsWrittenTheSameWayTwice) {
  const TempDir one, two;
  add_sample(one.path(), "a", kSmall);
  add_sample(two.path(), "a", kSmall);
  EXPECT_EQ(test::read_whole(latent_path(one.path(), "a")),
            test::read_whole(latent_path(two.path(), "a")));
}

}  // namespace
}  // namespace ballast::data
