#include "models/wan/published.h"

#include <gtest/gtest.h>

#include "models/t5/published.h"
#include "tests/support/errors.h"

namespace ballast {
namespace {

TEST(Published, WanModelsAreKnownByIdAndByPreset) {
  for (const auto& [named, preset] : {std::pair("Wan-AI/Wan2.2-I2V-A14B", "wan2.2-i2v-a14b"),
                                      {"Wan-AI/Wan2.2-T2V-A14B-Diffusers", "wan2.2-t2v-a14b"},
                                      {"wan-ai/wan2.2-ti2v-5b", "wan2.2-ti2v-5b"},
                                      {"Wan-AI/Wan2.1-T2V-1.3B@main", "wan2.1-t2v-1.3b"},
                                      {"Wan-AI/Wan2.1-T2V-14B-Diffusers", "wan2.1-t2v-14b"},
                                      {"Wan-AI/Wan2.2-I2V-A14B/low_noise_model", "wan2.2-i2v-a14b"},
                                      {"wan2.2-i2v-a14b", "wan2.2-i2v-a14b"}}) {
    const auto found = wan::find_published(named);
    ASSERT_TRUE(found) << named;
    EXPECT_EQ(found->config.name, preset);
    EXPECT_EQ(found->stored, DType::f32);
  }
  EXPECT_EQ(wan::find_published("wan2.2-i2v-a14b")->id.repository, "Wan-AI/Wan2.2-I2V-A14B");
  EXPECT_EQ(wan::find_published("wan-ai/wan2.2-ti2v-5b-diffusers")->id.repository,
            "Wan-AI/Wan2.2-TI2V-5B-Diffusers");
  for (const char* other : {"someone/Wan2.2-I2V-A14B", "Wan-AI/Wan9", "/models/wan", "wan"}) {
    EXPECT_FALSE(wan::find_published(other)) << other;
  }
}

TEST(Published, DerivativesThatAreNotRunAreNamed) {
  EXPECT_FAILS(wan::find_published("Wan-AI/Wan2.1-I2V-14B-720P"), ErrorCode::input,
               "CLIP cross-attention, which Ballast does not run");
  EXPECT_FAILS(wan::find_published("Wan-AI/Wan2.1-VACE-14B-Diffusers"), ErrorCode::input, "VACE");
}

TEST(Published, TextModelsAreKnownByIdAndByPreset) {
  for (const auto& [named, preset, repository] :
       {std::tuple("google/flan-t5-xl", "t5-v1.1-xl", "google/flan-t5-xl"),
        {"google/t5-v1_1-base", "t5-v1.1-base", "google/t5-v1_1-base"},
        {"t5-large", "t5-large", "google-t5/t5-large"},
        {"google-t5/t5-11b", "t5-11b", "google-t5/t5-11b"},
        {"t5-v1.1-xxl", "t5-v1.1-xxl", "google/t5-v1_1-xxl"}}) {
    const auto found = t5::find_published(named);
    ASSERT_TRUE(found) << named;
    EXPECT_EQ(found->config.name, preset);
    EXPECT_EQ(found->id.repository, repository);
  }
  EXPECT_FALSE(t5::find_published("google/flan-t5-giant"));
  EXPECT_FALSE(t5::find_published("google/mt5-small"));
}

TEST(Published, TheLargestOriginalT5ModelsHaveWideHeads) {
  const auto count = [](const char* name) { return t5::find_preset(name)->inner(); };
  EXPECT_EQ(count("t5-3b"), 32 * 128);
  EXPECT_EQ(count("t5-11b"), 128 * 128);
}

}  // namespace
}  // namespace ballast
