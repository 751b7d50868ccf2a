#include "models/wan_vae/latent_statistics.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/support/temp_dir.h"

namespace ballast::wan_vae {
namespace {

TEST(OwnStatistics, AreNoneWithTheReleasedNumbers) {
  const test::TempDir dir;
  std::string mean, std;
  for (std::size_t i = 0; i < kWan21LatentMean.size(); ++i) {
    mean += fmt::format("{}{}", i ? ", " : "", kWan21LatentMean[i]);
    std += fmt::format("{}{}", i ? ", " : "", kWan21LatentStd[i]);
  }
  const std::string text =
      fmt::format(R"({{"latents_mean": [{}], "latents_std": [{}]}})", mean, std);
  const std::string config = dir.write("config.json", text);
  EXPECT_FALSE(read_vae_statistics(config, 16).empty());
  EXPECT_TRUE(read_own_statistics(config, 16).empty());
  const std::string other =
      dir.write("config.json", R"({"latents_mean": [1, 2], "latents_std": [3, 4]})");
  EXPECT_EQ(read_own_statistics(other, 2).mean, (std::vector<float>{1, 2}));
}

TEST(ReleasedStatistics, HaveTheSumsOfTheOfficialLists) {
  double mean = 0, std = 0;
  for (const float m : kWan22LatentMean) mean += m;
  for (const float s : kWan22LatentStd) std += s;
  EXPECT_NEAR(mean, -0.5589, 1e-5);
  EXPECT_NEAR(std, 32.5360, 1e-5);
}

}  // namespace
}  // namespace ballast::wan_vae
