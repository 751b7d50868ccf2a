#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/safetensors_writer.h"
#include "tests/e2e/ballast_process.h"
#include "tests/support/tiny_safetensors.h"
#include "tests/support/tiny_training.h"

namespace ballast::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A model of two small experts with text states beside it.
class SampleCommand : public ::testing::Test {
 protected:
  SampleCommand() {
    const wan::Config config = support::trainable_config();
    for (const std::string kind : {"low", "high"}) {
      const support::TinyCheckpoint file(config, DType::f32, kind);
      std::filesystem::copy_file(file.path(), at("tiny_" + kind + "_noise.safetensors"));
    }
    write("cond", "embeddings", {3, 8});
    write("uncond", "embeddings", {1, 8});
  }

  std::string at(const std::string& name) const { return dir_.path(name); }
  void write(const std::string& name, const std::string& tensor, const Shape& shape) {
    const std::vector<float> values = support::normal_values(name, shape.elements(), 1);
    SafetensorsWriter writer;
    writer.add(tensor, DType::f32, shape, std::as_bytes(std::span(values)));
    writer.write(at(name + ".safetensors"));
  }
  Finished sample(std::vector<std::string> more, const std::string& output = "a.safetensors") {
    std::vector<std::string> all = {"sample",
                                    "--cond",
                                    at("cond.safetensors"),
                                    "--uncond",
                                    at("uncond.safetensors"),
                                    "--output",
                                    at(output),
                                    "--device",
                                    "cpu",
                                    "--steps",
                                    "3"};
    all.insert(all.end(), more.begin(), more.end());
    return run_ballast(all);
  }
  std::vector<std::string> clip(std::vector<std::string> more = {}) const {
    std::vector<std::string> all = {
        "--model", at("tiny_low_noise.safetensors"), "--frames", "5", "--height", "32", "--width",
        "48"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  TempDir dir_;
};

TEST_F(SampleCommand, GivesTheSameFileUnderOtherPoliciesAndThreads) {
  const Finished f = sample(clip({"--seed", "7"}));
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, AllOf(HasSubstr("two experts"), HasSubstr("high noise"),
                           HasSubstr("a.safetensors"), HasSubstr("memory: RAM")));
  const Finished g =
      sample(clip({"--seed", "7", "--policy", "stream1", "--threads", "1"}), "b.safetensors");
  ASSERT_EQ(g.exit_code, 0) << g.err;
  EXPECT_EQ(read_whole(at("a.safetensors")), read_whole(at("b.safetensors")));
  write("cond", "text", {3, 8});  // as `ballast cache` writes it
  const Finished t = sample(clip({"--seed", "7"}), "t.safetensors");
  ASSERT_EQ(t.exit_code, 0) << t.err;
  EXPECT_EQ(read_whole(at("a.safetensors")), read_whole(at("t.safetensors")));
  const auto tensors = read_tiny_safetensors(at("a.safetensors"));
  EXPECT_EQ(tensors.at("latent").shape, (std::vector<std::int64_t>{4, 2, 4, 6}));
  const Finished h = sample(clip({"--seed", "8", "--count", "2"}), "c.safetensors");
  ASSERT_EQ(h.exit_code, 0) << h.err;
  EXPECT_NE(read_tiny_safetensors(at("c-1.safetensors")).at("latent").data,
            tensors.at("latent").data);
  EXPECT_NE(read_tiny_safetensors(at("c-1.safetensors")).at("latent").data,
            read_tiny_safetensors(at("c-2.safetensors")).at("latent").data);
}

TEST_F(SampleCommand, WritesNothingWhereTheModelGivesNoNumbers) {
  std::vector<float> huge(24, 3e38f);
  SafetensorsWriter writer;
  writer.add("embeddings", DType::f32, {3, 8}, std::as_bytes(std::span(huge)));
  writer.write(at("cond.safetensors"));
  const Finished f = sample(clip());
  EXPECT_EQ(f.exit_code, 4) << f.out;
  EXPECT_THAT(f.err, AllOf(HasSubstr("the latent after step 1 of 3 holds"), HasSubstr("inspect")));
  EXPECT_FALSE(std::filesystem::exists(at("a.safetensors")));
}

TEST_F(SampleCommand, TakesTheFlagsOfTestInference) {
  const Finished f = sample({"--checkpoint",
                             at("tiny_low_noise.safetensors"),
                             "--latent_width",
                             "6",
                             "--latent_height",
                             "4",
                             "--frames",
                             "2",
                             "--cfg_scale",
                             "4.0",
                             "--offload_to_cpu",
                             "--dtype",
                             "fp32",
                             "--num_layers",
                             "2",
                             "--sigma_start",
                             "0.999",
                             "--sigma_end",
                             "0.01",
                             "--json"});
  ASSERT_EQ(f.exit_code, 0) << f.err;
  const auto j = nlohmann::json::parse(f.out);
  EXPECT_EQ(j.at("outputs").at(0), at("a.safetensors"));
  EXPECT_GT(j.at("measured").at("device").get<std::int64_t>(), 0);
  EXPECT_LE(j.at("measured").at("device"), j.at("planned").at("device"));
  EXPECT_EQ(read_tiny_safetensors(at("a.safetensors")).at("latent").shape,
            (std::vector<std::int64_t>{4, 2, 4, 6}));
}

TEST_F(SampleCommand, PlansWithoutRunningAndRefusesWithAdvice) {
  const Finished f = sample(clip({"--plan", "--distilled", "--distilled-timesteps", "1000,500"}));
  EXPECT_EQ(f.exit_code, 2) << f.out;
  EXPECT_THAT(f.err, HasSubstr("--steps and --distilled-timesteps"));
  EXPECT_THAT(sample(clip({"--plan", "--distilled"})).out, HasSubstr("3 steps of euler"));
  const Finished p = sample(clip({"--plan"}));
  EXPECT_EQ(p.exit_code, 0) << p.err;
  EXPECT_THAT(p.out, HasSubstr("3 steps of unipc"));
  EXPECT_FALSE(std::filesystem::exists(at("a.safetensors")));
  const Finished r = sample(clip({"--ram", "2MB"}));
  EXPECT_EQ(r.exit_code, 3);
  EXPECT_THAT(r.err, AllOf(HasSubstr("does not fit: "), HasSubstr("--ram")));
}

TEST_F(SampleCommand, SaysWhatIsWrongWithItsInput) {
  const auto expect = [](const Finished& f, int code, const std::string& text) {
    EXPECT_EQ(f.exit_code, code) << f.out;
    EXPECT_THAT(f.err, HasSubstr(text));
  };
  expect(run_ballast({"sample"}), 2, "no model to sample from");
  expect(run_ballast({"sample", "--model", at("tiny_low_noise.safetensors"), "--device", "cpu"}), 2,
         "there is no prompt");
  expect(sample(clip({"--sampler", "unipcc"})), 2, "unipc");
  expect(sample(clip({"--guidance", "nan"})), 2, "guidance");
  expect(sample(clip({"--shift", "-1"})), 2, "shift");
  expect(sample(clip({"--shift", "0"})), 2, "shift");
  expect(sample({"--model", at("tiny_low_noise.safetensors"), "--frames", "6"}), 2, "--frames 6");
  expect(sample(clip({"--image", at("cat.png")})), 2, "makes clips of text alone");
  write("cond", "embeddings", {3, 9});
  expect(sample(clip()), 4, "rows of 8");
  write("cond", "words", {3, 8});
  expect(sample(clip()), 4, "no tensor embeddings");
}

}  // namespace
}  // namespace ballast::test
