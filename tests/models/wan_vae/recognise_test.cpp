#include "models/wan_vae/recognise.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"
#include "tests/support/tensor_file.h"

namespace ballast::wan_vae::recognise_test {
namespace {

// The tensors by which a VAE of two latent channels is known.
std::optional<Recognised> recognised(const std::string& mean, const std::string& std) {
  const test::TempDir dir;
  const std::string path = support::TensorFile({{kLatentMeanKey, mean}, {kLatentStdKey, std}})
                               .add("decoder.middle.0.residual.0.gamma", DType::f32, {4}, 1)
                               .add("encoder.conv1.weight", DType::f32, {4, 3, 3, 3, 3}, 2)
                               .add("decoder.head.2.weight", DType::f32, {3, 4, 3, 3, 3}, 3)
                               .add("conv2.weight", DType::f32, {2, 2, 1, 1, 1}, 4)
                               .write(dir);
  return recognise(WeightFiles::open(path, DiskMode::buffered));
}

TEST(RecognisedVae, HasTheStatisticsOfItsMetadata) {
  const auto found = recognised("[0.5, -1]", "[2, 0.25]");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->dialect, Dialect::official);
  EXPECT_EQ(found->config.z_dim, 2);
  EXPECT_EQ(found->config.latent_mean, (std::vector<float>{0.5f, -1}));
  EXPECT_EQ(found->config.latent_std, (std::vector<float>{2, 0.25f}));
}

TEST(RecognisedVae, RefusesStatisticsThatCannotBeDividedBy) {
  for (const char* std : {"[0, 1]", "[-1, 1]", "[1e-40, 1]", "[1]", "[1, 1, 1]", "{}"}) {
    EXPECT_FAILS(recognised("[0, 0]", std), ErrorCode::input, "x.safetensors");
  }
}

}  // namespace
}  // namespace ballast::wan_vae::recognise_test
