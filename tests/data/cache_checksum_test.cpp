// Caches say the checksum of what they hold, and reading compares it.

#include <gtest/gtest.h>

#include "core/checksum.h"
#include "core/to_size.h"
#include "data/cache_file.h"
#include "data/latent_cache.h"
#include "data/other_caches.h"
#include "data/prefetcher.h"
#include "tests/support/errors.h"
#include "tests/support/paths.h"
#include "tests/support/tiny_cache.h"

namespace ballast::data::cache_checksum_test {
namespace {

using test::add_sample;
using test::counted;
using test::kQuickly;
using test::read_sample;
using test::TempDir;
using test::tiny_needs;
using ::testing::HasSubstr;

constexpr LatentShape kSmall{2, 1, 2, 4};

void flip(const std::string& path, std::size_t at, int bit = 4) {
  std::string bytes = test::read_whole(path);
  bytes.at(at) = static_cast<char>(bytes.at(at) ^ (1 << bit));
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(CacheChecksum, EveryFlippedByteOfTheDataIsFoundWhenItIsRead) {
  const TempDir dir;
  add_sample(dir.path(), "a", kSmall);
  const auto d = open_dataset({.path = dir.path(), .needs = tiny_needs()});
  for (const std::string& path : {latent_path(dir.path(), "a"), text_path(dir.path(), "a")}) {
    const CacheFile file = CacheFile::open(path);
    const SafetensorsEntry& tensor = file.header().entries()[0];
    for (std::uint64_t at = tensor.offset; at < tensor.offset + tensor.bytes; ++at) {
      flip(path, at);
      EXPECT_FAILS(read_sample(*d, tiny_needs(), 0), ErrorCode::input,
                   "not those that were written");
      flip(path, at);
    }
  }
  EXPECT_EQ(read_sample(*d, tiny_needs(), 0).latent, counted(16, 1));
}

TEST(CacheChecksum, AMismatchNamesFileAndChecksumsAndSaysWhatToDo) {
  const TempDir dir;
  const LatentShape large{2, 3, 80, 82};  // two chunks and a part
  add_sample(dir.path(), "a", large);
  const auto d = open_dataset({.path = dir.path(), .needs = tiny_needs()});
  const std::string path = latent_path(dir.path(), "a");
  std::string bytes = test::read_whole(path);
  const auto data = [&] {
    bytes = test::read_whole(path);
    return checksum_text(std::string_view(bytes).substr(bytes.size() - large.elements() * 4u));
  };
  const std::string written = data();
  flip(path, bytes.size() - 2, 0);  // a small change of one value
  test::SampleMemory to(tiny_needs(), large);
  Prefetcher ahead(*d);
  const SampleRequest request = {.sample = 0, .to = to.target()};
  ahead.request({&request, 1});
  const auto error = test::error_of([&] { ahead.wait(); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::input);
  EXPECT_THAT(error->what(), HasSubstr(path));
  EXPECT_THAT(error->what(), HasSubstr("tensor \"latent\""));
  EXPECT_THAT(error->what(), HasSubstr(written));
  EXPECT_THAT(error->what(), HasSubstr(data()));
  EXPECT_THAT(error->advice().at(0).change, HasSubstr("run ballast cache"));
}

TEST(CacheChecksum, ATensorWhoseNameWasDamagedIsNotTakenForAbsent) {
  const TempDir dir;
  const std::vector<float> latent = counted(16, 1), mask = counted(8, 0), text = counted(3, 0);
  write_cached_sample(dir.path(), "a", {.shape = kSmall, .latent = latent, .mask = mask},
                      {.tokens = 1, .dim = 3, .rows = text}, kQuickly);
  const std::string path = latent_path(dir.path(), "a");
  const std::string bytes = test::read_whole(path);
  EXPECT_EQ(CacheFile::open(path).header().entries().size(), 2u);
  for (const char* name : {"\"mask\"", "xxh3:mask", "3:latent"}) {
    const std::size_t at = bytes.find(name);
    ASSERT_NE(at, bytes.npos) << name;
    flip(path, at + 1, 1);
    EXPECT_FAILS(CacheFile::open(path), ErrorCode::input, "checksum");
    flip(path, at + 1, 1);
  }
}

TEST(CacheChecksum, CoversPixelsAndTheFilesOfOtherTrainers) {
  const TempDir dir;
  const std::vector<std::uint8_t> pixels(4 * 16 * 16 * 3, 9);
  LatentOrigin origin;
  origin.media.name = "clip.mp4";
  origin.bucket = {16, 16, 4};
  write_pixels(dir.path(), origin, {.frames = 4, .height = 16, .width = 16, .pixels = pixels},
               Durability::process);
  const std::vector<float> latent = counted(16, 1), rows = counted(6, 1);
  write_musubi_latent(dir.path("m_wan.safetensors"), {.name = "clip.mp4"},
                      {.width = 64, .height = 64, .frames = 5}, {.shape = kSmall, .latent = latent},
                      kQuickly);
  write_musubi_text(dir.path("m_wan_te.safetensors"), {.tokens = 2, .dim = 3, .rows = rows},
                    kQuickly);
  const auto read = [](const std::string& path) {
    const CacheFile file = CacheFile::open(path);
    const SafetensorsEntry& entry = file.header().entries()[0];
    std::vector<float> to(to_size(entry.shape.elements()));
    entry.dtype == FileDType::u8 ? file.read_pixels(entry, to) : file.read(entry, to);
    return to;
  };
  for (const std::string& path :
       {latent_path(dir.path(), latent_name("clip.mp4", origin.bucket)),
        dir.path("m_wan.safetensors"), dir.path("m_wan_te.safetensors")}) {
    read(path);
    flip(path, test::read_whole(path).size() - 1);
    EXPECT_FAILS(read(path), ErrorCode::input, "not those that were written");
  }
  // As musubi-tuner writes it itself: nothing to compare with.
  test::write_tensors(dir.path("n_wan.safetensors"), {{"latents_1x2x4_float32", {2, 1, 2, 4}}});
  flip(dir.path("n_wan.safetensors"), test::read_whole(dir.path("n_wan.safetensors")).size() - 2);
  EXPECT_EQ(read(dir.path("n_wan.safetensors")).size(), 16u);
}

// Files that version 0.1 wrote.
TEST(CacheChecksum, CachesOfVersion01StillLoad) {
  ModelNeeds needs = tiny_needs();
  needs.latent_channels = 4;
  needs.text_dim = 8;
  const auto d = open_dataset({.path = test::golden_path("cache_0.1"), .needs = needs});
  ASSERT_EQ(d->samples().size(), 1u);
  const auto sample = read_sample(*d, needs, 0);
  for (std::size_t i = 0; i < sample.latent.size(); ++i) {
    EXPECT_EQ(sample.latent[i], 0.25f * static_cast<float>(i) - 3);
  }
  EXPECT_EQ(sample.context[23], 9.5f);
  EXPECT_EQ(sample.context[24], 0.0f);
}

}  // namespace
}  // namespace ballast::data::cache_checksum_test
