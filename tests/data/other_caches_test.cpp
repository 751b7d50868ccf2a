#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/errors.h"
#include "tests/support/tiny_cache.h"

namespace ballast::data {
namespace {

using test::all_notes;
using test::counted;
using test::occurrences;
using test::read_sample;
using test::TempDir;
using test::tiny_needs;
using test::write_tensors;
using ::testing::HasSubstr;

class MusubiCache : public ::testing::Test {
 protected:
  MusubiCache() {
    write("[[datasets]]\nvideo_directory = '" + dir_.path("v") + "'\ntarget_frames = [5, 9]\n" +
          "resolution = [64, 64]\nbatch_size = 2\n");
  }
  void write(const std::string& text) { dir_.write("set.toml", text); }
  std::string in(const std::string& name) { return dir_.path("v/" + name); }
  void add_text(const std::string& stem, const std::string& word = "bfloat16",
                DType dtype = DType::bf16) {
    write_tensors(in(stem + "_wan_te.safetensors"), {{"varlen_t5_" + word, {2, 3}}}, dtype);
  }
  std::unique_ptr<Dataset> open(bool planning = false, ModelNeeds needs = tiny_needs()) {
    DatasetRequest r{.path = dir_.path("set.toml"), .needs = needs};
    r.planning = planning;
    return open_dataset(r);
  }

  TempDir dir_;
};

TEST_F(MusubiCache, SamplesAreLatentsWithTheirText) {
  write_tensors(in("my_clip_00000-005_0064x0064_wan.safetensors"),
                {{"latents_2x4x4_bfloat16", {2, 2, 4, 4}}}, DType::bf16);
  write_tensors(in("my_clip_00005-005_0064x0064_wan.safetensors"),
                {{"latents_2x4x4_float16", {2, 2, 4, 4}}}, DType::f16);
  write_tensors(in("other_00000-005_0064x0064_wan.safetensors"),
                {{"latents_2x4x4_float32", {2, 2, 4, 4}}});
  write_tensors(in("no_text_00000-005_0064x0064_wan.safetensors"),
                {{"latents_2x4x4_float32", {2, 2, 4, 4}}});
  add_text("my_clip");
  add_text("other", "float32", DType::f32);
  const auto d = open();
  EXPECT_EQ(occurrences(*d), (std::map<std::string, int>{{"v/my_clip_00000-005_0064x0064", 1},
                                                         {"v/my_clip_00005-005_0064x0064", 1},
                                                         {"v/other_00000-005_0064x0064", 1}}));
  EXPECT_EQ(d->epoch(0, 1).size(), 2u) << "batches of two, the last one kept";
  EXPECT_EQ(d->buckets()[0].micro_batch, 2);
  for (std::uint32_t s = 0; s < 3; ++s) {
    const auto m = read_sample(*d, tiny_needs(), s);
    EXPECT_EQ(m.latent, counted(64, 1));
    EXPECT_EQ(m.context[5], 6);
    EXPECT_EQ(m.context[6], 0);
  }
  EXPECT_THAT(all_notes(*d), HasSubstr("1 cached latents are left out: their text is not cached"));
}

TEST_F(MusubiCache, ConditioningIsTakenAsItIs) {
  ModelNeeds needs = tiny_needs();
  needs.conditioning_channels = 6;
  write_tensors(in("a_00000-005_0064x0064_wan.safetensors"),
                {{"latents_2x4x4_float32", {2, 2, 4, 4}},
                 {"latents_image_2x4x4_float32", {6, 2, 4, 4}},
                 {"clip_float32", {7, 5}}});
  add_text("a");
  EXPECT_EQ(read_sample(*open(false, needs), needs, 0).conditioning, counted(192, 1));
  EXPECT_EQ(read_sample(*open(), tiny_needs(), 0).latent, counted(64, 1));
}

TEST_F(MusubiCache, NamesThatContradictTheContentAreRefused) {
  add_text("a");
  const std::string file = in("a_00000-005_0064x0064_wan.safetensors");
  write_tensors(file, {{"latents_3x4x4_float32", {2, 2, 4, 4}}});
  EXPECT_FAILS(open(), ErrorCode::input, "whose name is latents_2x4x4_float32");
  write_tensors(file, {{"latents_2x4x4_bfloat16", {2, 2, 4, 4}}});
  EXPECT_FAILS(open(), ErrorCode::input, "whose name is latents_2x4x4_float32");
  write_tensors(file,
                {{"latents_2x4x4_float32", {2, 2, 4, 4}}, {"latents_1x4x4_float32", {2, 1, 4, 4}}});
  EXPECT_FAILS(open(), ErrorCode::input, "a second one");
  write_tensors(file, {{"something", {2, 2, 4, 4}}});
  EXPECT_FAILS(open(), ErrorCode::input, "latents_FxHxW_dtype");
  write_tensors(file, {{"latents_2x4x4_float32", {2, 2, 4, 4}}});
  write_tensors(in("a_wan_te.safetensors"), {{"varlen_t5_float32", {2, 5}}});
  EXPECT_FAILS(open(), ErrorCode::input, "varlen_t5_float32");
}

TEST_F(MusubiCache, ImagesAndVideosAreToldApartByName) {
  write("[[datasets]]\nimage_directory = '" + dir_.path("v") + "'\nnum_repeats = 2\n");
  write_tensors(in("pic_1_0640x0480_wan.safetensors"), {{"latents_1x4x4_float32", {2, 1, 4, 4}}});
  write_tensors(in("oddly-named_wan.safetensors"), {{"latents_1x4x4_float32", {2, 1, 4, 4}}});
  add_text("pic_1");
  EXPECT_EQ(occurrences(*open()), (std::map<std::string, int>{{"v/pic_1_0640x0480", 2}}));
}

TEST_F(MusubiCache, NotYetMadeIsPlannedForAtItsLargest) {
  EXPECT_FAILS(open(), ErrorCode::input, "there is no folder");
  EXPECT_EQ(open(true)->largest_allowed_bucket()->shape.frames, 3);
  EXPECT_EQ(open(true)->largest_allowed_bucket()->micro_batch, 2);
  std::filesystem::create_directory(dir_.path("v"));
  EXPECT_FAILS(open(), ErrorCode::input, "not cached yet");
  EXPECT_FALSE(open(true)->fully_cached());
}

TEST_F(MusubiCache, TheSameFileMayBeJson) {
  write_tensors(in("a_00000-005_0064x0064_wan.safetensors"),
                {{"latents_2x4x4_float32", {2, 2, 4, 4}}});
  add_text("a");
  dir_.write("set.json", R"({"datasets": [{"video_directory": ")" + dir_.path("v") + "\"}]}");
  EXPECT_EQ(open_dataset({.path = dir_.path("set.json"), .needs = tiny_needs()})->samples().size(),
            1u);
}

TEST(EmbeddingPairs, AreNormalisedWithTheVaesStatistics) {
  const TempDir dir;
  write_tensors(dir.path("deep/er/x.latent.safetensors"), {{"latent", {48, 1, 2, 2}}});
  write_tensors(dir.path("deep/er/x.safetensors"), {{"embeddings", {4, 3}}});
  write_tensors(dir.path("alone.latent.safetensors"), {{"latent", {48, 1, 2, 2}}});
  dir.write("deep/er/x.mp4", "media");
  std::filesystem::create_directory_symlink("..", dir.path("deep/up"));
  ModelNeeds needs = tiny_needs();
  needs.latent_channels = 48;
  const std::vector<float> mean = counted(48, -3), std = counted(48, 2);
  needs.pair_statistics = {mean, std};
  const auto d = open_dataset({.path = dir.path(), .needs = needs});
  ASSERT_EQ(d->samples().size(), 1u);
  EXPECT_EQ(d->samples()[0].id, "deep/er/x");
  const auto m = read_sample(*d, needs, 0);
  for (std::size_t i = 0; i < m.latent.size(); ++i) {
    const float raw = static_cast<float>(i) + 1;
    EXPECT_EQ(m.latent[i], (raw - mean[i / 4]) / std[i / 4]);
  }
  EXPECT_EQ(m.context, counted(12, 1));
  EXPECT_THAT(all_notes(*d), HasSubstr("1 latents are left out"));
}

TEST(EmbeddingPairs, OfAnotherVaeAreRefused) {
  const TempDir dir;
  write_tensors(dir.path("x.latent.safetensors"), {{"latent", {2, 1, 2, 2}}});
  write_tensors(dir.path("x.safetensors"), {{"embeddings", {4, 3}}});
  const auto d = open_dataset({.path = dir.path(), .needs = tiny_needs()});
  EXPECT_FAILS(read_sample(*d, tiny_needs(), 0), ErrorCode::input, "statistics");
}

}  // namespace
}  // namespace ballast::data
