#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>

#include "core/bytes.h"
#include "io/media_reader.h"
#include "io/safetensors_writer.h"
#include "tests/e2e/ballast_process.h"
#include "tests/support/tiny_dit.h"

namespace ballast::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

// The small model that comes with the project teaches.
const std::string kTeacher = BALLAST_SOURCE_DIR "/examples/demo_model/model";
constexpr std::int64_t kTextWidth = 128;

class Distilling : public ::testing::Test {
 protected:
  Finished distill(const std::string& output, std::vector<std::string> more) const {
    std::vector<std::string> all = {
        "distill", "--teacher_path", kTeacher, "--student_config", student_,          "--data_path",
        prompts_,  "--lr",           "1e-3",   "--output_dir",     dir_.path(output), "--device",
        "cpu"};
    all.insert(all.end(), more.begin(), more.end());
    return run_ballast(all);
  }

  const TempDir dir_;
  const std::string student_ =
      dir_.write("student.json",
                 R"({"hidden_size":32,"depth":2,"num_heads":2,"num_channels":4,"image_size":128,)"
                 R"("patch_size":16,"text_max_length":77,"text_encoder_output_dim":128})");
  const std::string prompts_ = dir_.write(
      "prompts.txt", "a red circle falls\n\na blue square grows\na green circle rises\n");
};

// Samples are decoded beside teacher and student, inside the plan.
TEST_F(Distilling, DrawsPicturesInsideItsPlan) {
  if (!media_available()) GTEST_SKIP() << "built without FFmpeg";
  const Finished f =
      distill("out", {"--num_steps", "3", "--batch_size", "1", "--save_samples", "--details"});
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, AllOf(HasSubstr("decoder of samples"), HasSubstr("finished after 3 steps")));
  EXPECT_THAT(f.err, ::testing::Not(HasSubstr("than planned")));
  std::smatch found;
  ASSERT_TRUE(
      std::regex_search(f.out, found, std::regex("RAM: planned (.*), measured at most (.*)\\n")));
  EXPECT_LE(*parse_bytes(found[2].str()), *parse_bytes(found[1].str())) << found[0];
  for (const char* name :
       {"config.json", "diffusion_pytorch_model.safetensors", "output_proj.safetensors",
        "samples/epoch_0001_rank_0_sample_00.png", "samples/epoch_0001_rank_0_sample_01.png"}) {
    EXPECT_TRUE(fs::exists(dir_.path(std::string("out/") + name))) << name;
  }
  const Finished picture =
      run_ballast({"sample", "--model_path", dir_.path("out"), "--teacher_path", kTeacher,
                   "--prompt", "a red circle", "--output_path", dir_.path("result.png"),
                   "--num_inference_steps", "3", "--device", "cpu"});
  EXPECT_EQ(picture.exit_code, 0) << picture.err;
  EXPECT_TRUE(fs::exists(dir_.path("result.png")));

  const auto sample = [&](const std::string& output, std::vector<std::string> more) {
    std::vector<std::string> all = {
        "sample", "--model_path",  dir_.path("out"),  "--cond",   "none", "--teacher_path",
        kTeacher, "--output_path", dir_.path(output), "--device", "cpu"};
    all.insert(all.end(), more.begin(), more.end());
    return run_ballast(all);
  };
  // Not the student's buffers alone: the process counts. With states instead of a prompt it is the
  // only part.
  const std::string states = dir_.path("states.safetensors");
  const std::vector<float> rows = support::normal_values("states", kTextWidth, 1);
  SafetensorsWriter writer;
  writer.add("embeddings", DType::f32, {1, kTextWidth}, std::as_bytes(std::span(rows)));
  writer.write(states);
  const std::vector<std::string> latent = {
      "sample",   "--model_path",  dir_.path("out"),
      "--cond",   states,          "--teacher_path",
      kTeacher,   "--output_path", dir_.path("latent.safetensors"),
      "--device", "cpu",           "--json"};
  const Finished drawn = run_ballast(latent);
  ASSERT_EQ(drawn.exit_code, 0) << drawn.err;
  const auto j = nlohmann::json::parse(drawn.out);
  const auto buffers = j["device"]["planned_bytes"].get<std::uint64_t>() +
                       j["host"]["planned_bytes"].get<std::uint64_t>();
  EXPECT_GT(j["host"]["needed_bytes"].get<std::uint64_t>(), buffers + 2'000'000);
  std::vector<std::string> short_of_it = latent;
  short_of_it.insert(short_of_it.end(), {"--ram", fmt::format("{}B", buffers + 1'000'000)});
  const Finished refused = run_ballast(short_of_it);
  EXPECT_EQ(refused.exit_code, 3) << refused.err;
  EXPECT_THAT(refused.err, AllOf(HasSubstr("more RAM needed"), HasSubstr(dir_.path("out")),
                                 HasSubstr("one latent of"), HasSubstr("--ram ")));

  const Finished jpeg = sample("result.jpg", {});
  EXPECT_EQ(jpeg.exit_code, 2) << jpeg.err;
  EXPECT_THAT(jpeg.err, HasSubstr("result.jpg: a student's sample is one image"));
  const Finished tight = sample("tight.png", {"--ram", "1MB"});  // decoding has no more either
  EXPECT_EQ(tight.exit_code, 3) << tight.err;
  EXPECT_THAT(tight.err, AllOf(HasSubstr(" decoding: images of "), HasSubstr("   1.000 MB ")));
  std::smatch enough;
  ASSERT_TRUE(std::regex_search(tight.err, enough, std::regex("--ram (\\d+MB): fits: ")));
  EXPECT_THAT(sample("tight.png", {"--ram", enough[1].str()}).err,
              ::testing::Not(HasSubstr("does not fit")));

  // Nothing is computed for a student without its projection, whatever becomes of its samples.
  fs::remove(dir_.path("out/output_proj.safetensors"));
  for (const char* output : {"none.png", "none.safetensors"}) {
    const Finished lacking = run_ballast({"sample", "--model_path", dir_.path("out"),
                                          "--teacher_path", kTeacher, "--prompt", "a red circle",
                                          "--output_path", dir_.path(output), "--device", "cpu"});
    EXPECT_EQ(lacking.exit_code, 4);
    EXPECT_EQ(lacking.out, "");
    EXPECT_THAT(lacking.err,
                AllOf(HasSubstr(dir_.path("out") + " has no output_proj.safetensors"),
                      HasSubstr("the student's 4 channels to the 16"), HasSubstr("1. copy ")));
  }
}

TEST_F(Distilling, AsksForTheUnitOfABudget) {
  const Finished f = distill("out", {"--gpu", "6"});
  EXPECT_EQ(f.exit_code, 2) << f.err;
  EXPECT_THAT(f.err, HasSubstr("--gpu: 6 means 6 bytes; did you mean 6GB?"));
}

// Before prompts are encoded.
TEST_F(Distilling, TriesWhereSamplesGoBeforeItBegins) {
  const std::string taken = dir_.write("taken", "a file");
  const Finished f =
      distill("out", {"--num_steps", "1", "--save_samples", "--sample_dir", taken + "/samples"});
  EXPECT_EQ(f.exit_code, 6) << f.err;
  EXPECT_THAT(f.err, AllOf(HasSubstr(taken), ::testing::Not(HasSubstr("encoding"))));
  const Finished g = distill("out", {"--save_samples", "--sample_steps", "1001"});
  EXPECT_EQ(g.exit_code, 2) << g.err;
  EXPECT_THAT(g.err, HasSubstr("1001 steps"));
  EXPECT_FALSE(fs::exists(dir_.path("out/text_states")));
}

TEST_F(Distilling, SaysWhatIsWrongWithAStudent) {
  dir_.write("student.json",
             R"({"hidden_size":33,"depth":2,"num_heads":2,"num_channels":4,"image_size":128,)"
             R"("patch_size":16,"text_max_length":77,"text_encoder_output_dim":128})");
  const Finished f = distill("out", {});
  EXPECT_EQ(f.exit_code, 4);
  EXPECT_THAT(f.err, HasSubstr("1. choose a number of heads that divides it\n"));
}

// Every place of the teacher, and as its file has it or wider, teaches the same.
TEST_F(Distilling, PlacesOfTheTeacherEndInTheSameBits) {
  std::string first;
  const std::vector<std::vector<std::string>> ways = {
      {"--teacher_device_strategy", "gpu0"},
      {"--teacher_on_cpu"},
      {"--teacher_device_strategy", "disk"},
      {"--teacher_device_strategy", "cpu_compute", "--teacher_dtype", "float32"}};
  for (std::vector<std::string> way : ways) {
    const std::string output = fmt::format("out-{}", way.back());
    way.insert(way.end(), {"--num_steps", "2", "--text_states", dir_.path("states")});
    const Finished f = distill(output, way);
    ASSERT_EQ(f.exit_code, 0) << f.err;
    const std::string student =
        read_whole(dir_.path(output + "/diffusion_pytorch_model.safetensors"));
    if (first.empty()) first = student;
    EXPECT_EQ(student, first) << output;
  }
}

}  // namespace
}  // namespace ballast::test
