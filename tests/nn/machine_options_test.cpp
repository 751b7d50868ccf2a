#include "nn/machine_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "nn/memory_policy.h"

namespace ballast {
namespace {

using testing::HasSubstr;

TEST(MachineOptions, FieldsHaveNamesOfTheirOwnAndAHelpText) {
  MachineOptions o;
  std::set<std::string> names;
  MachineOptions::fields(o, [&](std::string_view name, auto&&, std::string_view help) {
    EXPECT_TRUE(names.insert(std::string(name)).second) << name;
    EXPECT_FALSE(help.empty()) << name;
  });
  for (const char* name : {"gpu", "ram", "disk", "device", "threads", "policy", "weights",
                           "non_deterministic", "verify_weights", "ignore_limits", "json"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

TEST(MachineOptions, SizesAreReadFromTexts) {
  MachineOptions o;
  EXPECT_EQ(set_option(o.gpu, "24GiB"), std::nullopt);
  EXPECT_EQ(set_option(o.ram, "32GB"), std::nullopt);
  EXPECT_EQ(set_option(o.disk, "0"), std::nullopt);
  EXPECT_EQ(o.budget().gpu, 24_GiB);
  EXPECT_EQ(o.budget().ram, 32_GB);
  EXPECT_EQ(o.budget().disk, Bytes{0});
  EXPECT_EQ(set_option(o.gpu, "lots"), "expected a size such as 24GB, found \"lots\"");
  EXPECT_EQ(set_option(o.gpu, "-1GB"), "expected a size such as 24GB, found \"-1GB\"");
  EXPECT_EQ(set_option(o.gpu, "24"), "24 means 24 bytes; did you mean 24GB?");
  EXPECT_EQ(o.gpu, 24_GiB) << "a wrong text changes nothing";
  for (const char* text : {"24B", "1000000", "1.5 GiB"}) {
    EXPECT_EQ(set_option(o.gpu, text), std::nullopt) << text;
  }
}

TEST(MachineOptions, ASizeIsWrittenToTheByte) {
  for (const char* text : {"24GB", "24GiB", "1500MB", "3MiB", "7kB", "1234567B", "0B"}) {
    std::optional<Bytes> size;
    ASSERT_EQ(set_option(size, text), std::nullopt) << text;
    EXPECT_EQ(option_text(size), text);
  }
  EXPECT_EQ(option_text(std::optional<Bytes>()), "");
}

TEST(MachineOptions, WordsAreReadInAnyCaseAndAWrongOneNamesTheRightOnes) {
  MachineOptions o;
  EXPECT_EQ(set_option(o.device, "CUDA"), std::nullopt);
  EXPECT_EQ(o.device, DeviceChoice::cuda);
  EXPECT_EQ(set_option(o.device, "cud"), "expected one of auto, cpu, cuda (cuda?), found \"cud\"");
  EXPECT_EQ(set_option(o.verify_weights, "off"), std::nullopt);
  EXPECT_EQ(o.verify_weights, VerifyWeights::off);
  EXPECT_THAT(set_option(o.verify_weights, "some").value(), HasSubstr("one of sampled, all, off"));
  EXPECT_EQ(set_option(PolicyName{o.policy}, "stream2"), std::nullopt);
  EXPECT_EQ(o.policy, "stream2");
  EXPECT_THAT(set_option(PolicyName{o.policy}, "steam2").value(), HasSubstr("(stream2?)"));
  EXPECT_EQ(set_option(PolicyName{o.policy}, "auto"), std::nullopt);
  EXPECT_FALSE(find_policy(o.policy)) << "auto leaves the choice to the planner";
}

TEST(MachineOptions, EveryFormatOfWeightsHasOneName) {
  MachineOptions o;
  for (const std::string_view name : weight_format_names()) {
    EXPECT_EQ(set_option(o.weights, name), std::nullopt) << name;
    EXPECT_EQ(option_text(o.weights), name);
    EXPECT_THAT(MachineOptions::weights_help(), HasSubstr(std::string(name)));
  }
  EXPECT_THAT(set_option(o.weights, "fp9").value(), HasSubstr("one of stored, f32, bf16"));
}

}  // namespace
}  // namespace ballast
