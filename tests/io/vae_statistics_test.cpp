#include "io/vae_statistics.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace ballast {
namespace {

class VaeStatisticsFile : public ::testing::Test {
 protected:
  VaeStatistics read(const std::string& json) {
    return read_vae_statistics(dir_.write("config.json", json), 2);
  }
  test::TempDir dir_;
};

TEST_F(VaeStatisticsFile, GivesBothListsOrNothing) {
  const VaeStatistics s =
      read(R"({"z_dim": 2, "latents_std": [0.5, 2e0], "latents_mean": [1, -2.5]})");
  EXPECT_EQ(s.mean, (std::vector<float>{1, -2.5}));
  EXPECT_EQ(s.std, (std::vector<float>{0.5, 2}));
  EXPECT_TRUE(read(R"({"z_dim": 2})").empty());
  EXPECT_TRUE(read(R"({"latents_mean": null, "latents_std": null})").empty());
}

TEST_F(VaeStatisticsFile, NamesFileAndKeyOfWhatIsWrong) {
  struct {
    const char *json, *said;
  } const cases[] = {
      {R"({"latents_mean": [1], "latents_std": [1, 1]})", "latents_mean has 1 numbers"},
      {R"({"latents_mean": [1, 1], "latents_std": [1, 1, 1]})", "latents_std has 3 numbers"},
      {R"({"latents_mean": [1, 1], "latents_std": [1, 0]})", "latents_std[1] is 0"},
      {R"({"latents_mean": [1, 1], "latents_std": [-1, 1]})", "latents_std[0] is -1"},
      {R"({"latents_mean": [1, 1], "latents_std": [1e-320, 1]})", "latents_std"},
      {R"({"latents_mean": [1e39, 1], "latents_std": [1, 1]})", "latents_mean[0] is 1e+39"},
      {R"({"latents_mean": [1e999, 1], "latents_std": [1, 1]})", "latents_mean"},
      {R"({"latents_mean": [NaN, 1], "latents_std": [1, 1]})", "latents_mean"},
      {R"({"latents_mean": "1 1", "latents_std": [1, 1]})", "latents_mean"},
      {R"({"latents_mean": [[1, 1]], "latents_std": [1, 1]})", "latents_mean"},
      {R"({"latents_mean": [1, 1]})", "has latents_mean and no latents_std"},
      {R"({"latents_std": [1, 1]})", "has latents_std and no latents_mean"},
      {R"({"latents_std": [1, 1], "latents_mean": [1, 1], "latents_std": [1, 1]})",
       "latents_std is there twice"},
  };
  for (const auto& c : cases) {
    const auto error = test::error_of([&] { read(c.json); });
    ASSERT_TRUE(error.has_value()) << c.json;
    EXPECT_EQ(error->code(), ErrorCode::input) << c.json;
    EXPECT_THAT(error->what(), ::testing::HasSubstr(dir_.path("config.json"))) << c.json;
    EXPECT_THAT(error->what(), ::testing::HasSubstr(c.said)) << c.json;
  }
}

TEST_F(VaeStatisticsFile, IsThatOfAFolderOrOfAFileThatDiffusersNamed) {
  const std::string config = dir_.write("vae/config.json", "{}");
  const std::string shard = dir_.write("vae/diffusion_pytorch_model.safetensors", "");
  EXPECT_EQ(vae_config_json(dir_.path("vae")), config);
  EXPECT_EQ(vae_config_json(shard), config);
  EXPECT_EQ(vae_config_json(dir_.write("vae/Wan2.1_VAE.pth", "")), "");
  EXPECT_EQ(vae_config_json(dir_.path()), "");
  EXPECT_EQ(vae_config_json(dir_.path("nothing")), "");
}

}  // namespace
}  // namespace ballast
