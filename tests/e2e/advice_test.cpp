// Advice of commands that have flags alone: each line is typed, and the program answers what the
// advice said.

#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/safetensors_writer.h"
#include "tests/e2e/ballast_process.h"
#include "tests/support/applied_advice.h"
#include "tests/support/tiny_safetensors.h"
#include "tests/support/tiny_training.h"

namespace ballast::test {
namespace {

using nlohmann::json;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

// All texts of the advice that this command, which must not fit, is refused with.
std::vector<std::string> expect_true_advice(const Words& words) {
  const Finished refused = run_ballast(words);
  EXPECT_EQ(refused.exit_code, 3) << refused.err;
  if (refused.exit_code != 3) return {};
  std::vector<std::string> texts;
  const json advice = json::parse(refused.out)["advice"];
  for (const json& a : advice) {
    const std::string text = a["change"];
    SCOPED_TRACE(text);
    texts.push_back(text);
    const Finished again = run_ballast(support::with_flags(words, text));
    EXPECT_EQ(again.exit_code, a["fits"] ? 0 : 3) << again.err;
    if (again.exit_code != 3) continue;
    const json j = json::parse(again.out);
    for (const char* tier : {"device", "host", "disk"}) {
      EXPECT_EQ(a["needed_bytes"][tier], j[tier]["peak_bytes"]) << tier;
    }
  }
  return texts;
}

TEST(Advice, OfPlanningAModelIsTakenByItsFlags) {
  const support::TinyTraining tiny(support::trainable_config(2));
  const auto plan = [&](Words more) {
    Words words = {
        "plan",    "--model", tiny.model_path(), "--frames", "17",        "--height", "64",
        "--width", "96",      "--device",        "cpu",      "--threads", "2",        "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const auto lora = expect_true_advice(
      plan({"--mode", "lora", "--batch", "2", "--rank", "8", "--gpu", "1MB", "--ram", "1MB"}));
  for (const char* expected : {"--gpu ", "--ram ", "--frames ", "--height 48 --width 64",
                               "--weights fp8", "--rank 4", "--batch 1"}) {
    EXPECT_THAT(lora, Contains(HasSubstr(expected)));
  }
  const auto full = expect_true_advice(
      plan({"--mode", "full", "--ram", "1MB", "--disk", "0MB", "--policy", "resident"}));
  EXPECT_THAT(full, Contains("--mode lora"));
  EXPECT_THAT(full, Contains("--policy auto"));
  EXPECT_THAT(full, Each(Not(HasSubstr("--gpu")))) << "--ram bounds all of it";
  EXPECT_THAT(expect_true_advice(plan({"--mode", "full", "--ram", "1MB", "--disk", "0MB"})),
              Contains(HasSubstr("--disk ")));
}

TEST(Advice, OfSamplingIsTakenByItsFlags) {
  const TempDir dir;
  const support::TinyTraining tiny(support::trainable_config(2));
  for (const auto& [name, rows] : {std::pair("cond", 3), std::pair("uncond", 1)}) {
    const std::vector<float> values = support::normal_values(name, rows * 8, 1);
    SafetensorsWriter writer;
    writer.add("embeddings", DType::f32, {rows, 8}, std::as_bytes(std::span(values)));
    writer.write(dir.path(std::string(name) + ".safetensors"));
  }
  const Words words = {"sample",
                       "--model",
                       tiny.model_path(),
                       "--cond",
                       dir.path("cond.safetensors"),
                       "--uncond",
                       dir.path("uncond.safetensors"),
                       "--output",
                       dir.path("a.safetensors"),
                       "--device",
                       "cpu",
                       "--threads",
                       "1",
                       "--steps",
                       "1",
                       "--frames",
                       "9",
                       "--height",
                       "64",
                       "--width",
                       "96",
                       "--ram",
                       "1MB",
                       "--policy",
                       "resident",
                       "--json"};
  const auto texts = expect_true_advice(words);
  for (const char* expected :
       {"--ram ", "--frames ", "--height 48 --width 64", "--weights fp8", "--policy auto"}) {
    EXPECT_THAT(texts, Contains(HasSubstr(expected)));
  }
  EXPECT_THAT(texts, Each(Not(HasSubstr("--gpu"))));
}

}  // namespace
}  // namespace ballast::test
