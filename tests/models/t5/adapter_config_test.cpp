#include "models/t5/adapter_config.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace ballast::t5::adapter_config_test {
namespace {

AdapterConfig read(const std::string& text) {
  const test::TempDir dir;
  dir.write(kAdapterConfigFile, text);
  return read_adapter_config(dir.path());
}

TEST(AdapterConfig, IsReadAsItWasWritten) {
  const AdapterConfig written = {.rank = 3,
                                 .alpha = 0.1,
                                 .root_scale = true,
                                 .dropout = 0.25,
                                 .targets = {"q", "wi_\"1\""},
                                 .base_model = "some\\model"};
  const AdapterConfig c = read(adapter_config_json(written));
  EXPECT_EQ(c.rank, 3);
  EXPECT_EQ(c.alpha, 0.1);
  EXPECT_TRUE(c.root_scale);
  EXPECT_EQ(c.dropout, 0.25);
  EXPECT_EQ(c.targets, written.targets);
  EXPECT_EQ(c.base_model, written.base_model);
}

TEST(AdapterConfig, RefusesNumbersThatNoAdapterHas) {
  EXPECT_FAILS(read(R"({"r": 0})"), ErrorCode::input, "rank from 1 to 4096");
  EXPECT_FAILS(read(R"({"r": 1000000000000})"), ErrorCode::input, "rank from 1 to 4096");
  // A factor of it would be infinite in f32.
  EXPECT_FAILS(read(R"({"lora_alpha": 1e300})"), ErrorCode::input, "alpha of at most 1e9");
  EXPECT_FAILS(read(R"({"lora_alpha": -1e300})"), ErrorCode::input, "alpha of at most 1e9");
}

}  // namespace
}  // namespace ballast::t5::adapter_config_test
