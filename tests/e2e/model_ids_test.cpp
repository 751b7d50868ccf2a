// Models that are named by an id of the hub or by a preset, here or not yet.

#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/e2e/ballast_process.h"
#include "tests/support/hub_tree.h"
#include "tests/support/tiny_text_model.h"
#include "tests/support/tiny_training.h"

namespace ballast::test::model_ids_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ModelIds : public ::testing::Test {
 protected:
  // A run on clips that nobody has cached yet.
  std::string config(const std::string& model_lines, const std::string& more = "") const {
    dir_.write("clips/a.txt", "a clip");
    dir_.write("data.toml", fmt::format("resolutions = [256]\nframe_buckets = [1, 17]\n"
                                        "[[directory]]\npath = '{}'\n",
                                        dir_.path("clips")));
    return dir_.write(
        "run.toml",
        fmt::format("output_dir = '{}'\ndataset = '{}'\nepochs = 1\n{}\n[model]\ntype = 'wan'\n{}\n"
                    "dtype = 'bfloat16'\ntransformer_dtype = 'float8'\n"
                    "[adapter]\ntype = 'lora'\nrank = 8\ndtype = 'bfloat16'\n"
                    "[optimizer]\ntype = 'adamw8bit'\nlr = 1e-4\n",
                    dir_.path("out"), dir_.path("data.toml"), more, model_lines));
  }
  static Finished plan(const std::string& config) {
    return run_ballast({"plan", config, "--target", "h200", "--ram", "64GB"});
  }

  TempDir dir_;
  support::HubTree hub_;  // empty: nothing of this machine's cache is seen
};

TEST_F(ModelIds, APublishedModelIsPlannedBeforeItIsDownloaded) {
  for (const char* id : {"Wan-AI/Wan2.2-I2V-A14B", "wan2.2-i2v-a14b"}) {
    const std::string run = config(fmt::format("ckpt_path = '{}'\nmax_t = 0.5", id));
    const Finished f = plan(run);
    ASSERT_EQ(f.exit_code, 0) << f.err;
    EXPECT_THAT(f.out, HasSubstr("wan2.2-i2v-a14b"));
    EXPECT_THAT(f.out + f.err, AllOf(HasSubstr(std::string(id) + " is not on this machine"),
                                     HasSubstr("low-noise expert")));
    const Finished train = run_ballast({"train", run});
    EXPECT_EQ(train.exit_code, 4);
    EXPECT_THAT(train.err,
                HasSubstr(fmt::format(
                    "hf download Wan-AI/Wan2.2-I2V-A14B --local-dir {}: downloads it", id)));
    EXPECT_FALSE(std::filesystem::exists(dir_.path("out")));
  }
}

TEST_F(ModelIds, TheExpertsOfAPublishedModelAreChosenAsThoseOfAFolder) {
  const auto said = [&](const std::string& model, const std::string& more = "") {
    const Finished f = plan(config(model, more));
    EXPECT_EQ(f.exit_code, 0) << f.err;
    return f.out + f.err;
  };
  const std::string id = "ckpt_path = 'Wan-AI/Wan2.2-T2V-A14B'";
  EXPECT_THAT(said(id), AllOf(HasSubstr("two experts of one shape"),
                              HasSubstr("'Wan-AI/Wan2.2-T2V-A14B/high_noise_model'")));
  EXPECT_THAT(said("ckpt_path = 'Wan-AI/Wan2.2-T2V-A14B-Diffusers'"),
              HasSubstr("'Wan-AI/Wan2.2-T2V-A14B-Diffusers/transformer_2'"));
  EXPECT_THAT(said(id + "\nmin_t = 0.875"), HasSubstr("high-noise expert"));
  EXPECT_THAT(said(id, "experts = 'both'"),
              AllOf(HasSubstr("both experts"), Not(HasSubstr("two experts of one shape"))));
  const Finished one = plan(config("ckpt_path = 'Wan-AI/Wan2.2-TI2V-5B'", "experts = 'both'"));
  EXPECT_EQ(one.exit_code, 4);
  EXPECT_THAT(one.err, HasSubstr("has one transformer"));
}

TEST_F(ModelIds, AModelThatIsNotRunIsNamedBeforeItIsDownloaded) {
  const Finished f = plan(config("ckpt_path = 'Wan-AI/Wan2.1-I2V-14B-720P'"));
  EXPECT_EQ(f.exit_code, 4);
  EXPECT_THAT(f.err, HasSubstr("which Ballast does not run"));
}

TEST_F(ModelIds, OneKindOfStepIsPlannedById) {
  const Finished f =
      run_ballast({"plan", "--model", "Wan-AI/Wan2.2-TI2V-5B", "--weights", "bf16", "--target",
                   "h200", "--height", "256", "--width", "256", "--frames", "17"});
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, HasSubstr("wan2.2-ti2v-5b"));
  EXPECT_THAT(f.err, HasSubstr("is not on this machine"));
}

TEST_F(ModelIds, TextModelsArePlannedBeforeTheyAreDownloaded) {
  const std::string texts = dir_.write("train.jsonl",
                                       "{\"input\":\"a\",\"output\":\"b\"}\n"
                                       "{\"input\":\"c\",\"output\":\"d\"}\n");
  const std::vector<std::string> job = {"--model_name_or_path", "google/flan-t5-base",
                                        "--train_file",         texts,
                                        "--output_dir",         dir_.path("out"),
                                        "--max_source_length",  "64",
                                        "--max_target_length",  "32"};
  std::vector<std::string> plan = {"plan", "--target", "h200", "--json"}, train = {"train"};
  plan.insert(plan.end(), job.begin(), job.end());
  train.insert(train.end(), job.begin(), job.end());
  const Finished f = run_ballast(plan);
  ASSERT_EQ(f.exit_code, 0) << f.err;
  const auto json = nlohmann::json::parse(f.out);
  EXPECT_THAT(json.dump(), AllOf(HasSubstr("t5-v1.1-base"), HasSubstr("64 and 32 tokens"),
                                 HasSubstr("there is no tokenizer yet")));
  const Finished t = run_ballast(train);
  EXPECT_EQ(t.exit_code, 4);
  EXPECT_THAT(t.err, HasSubstr("hf download google/flan-t5-base --local-dir google/flan-t5-base"));
  const Finished g = run_ballast({"generate", "google/flan-t5-base", "say red"});
  EXPECT_EQ(g.exit_code, 4);
  EXPECT_THAT(g.err, HasSubstr("hf download google/flan-t5-base"));
}

TEST_F(ModelIds, ATeacherIsPlannedBeforeItIsDownloaded) {
  const std::string student =
      dir_.write("student.json",
                 R"({"hidden_size":32,"depth":2,"num_heads":2,"num_channels":4,"image_size":128,)"
                 R"("patch_size":16,"text_max_length":77,"text_encoder_output_dim":4096})");
  const std::string prompts = dir_.write("prompts.txt", "a red circle falls\n");
  const auto distill = [&](std::vector<std::string> more) {
    more.insert(more.begin(),
                {"distill", "--teacher_path", "Wan-AI/Wan2.1-T2V-1.3B", "--student_config", student,
                 "--data_path", prompts, "--output_dir", dir_.path("out"), "--batch_size", "1"});
    return run_ballast(more);
  };
  const Finished plan = distill({"--plan", "--target", "h200"});
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out, AllOf(HasSubstr("wan2.1-t2v-1.3b"), HasSubstr("is not on this machine")));
  const Finished run = distill({});
  EXPECT_EQ(run.exit_code, 4);
  EXPECT_THAT(run.err, HasSubstr("hf download Wan-AI/Wan2.1-T2V-1.3B"));
}

// The hub's cache serves where a path would.
TEST_F(ModelIds, ATextModelOfTheCacheGeneratesAndTrains) {
  const std::string model = support::write_text_model(dir_, "model");
  for (const char* file : {"config.json", "tokenizer.json", "model.safetensors"}) {
    hub_.add("google/flan-t5-tiny", "aa11", file, read_whole(model + "/" + file));
  }
  hub_.refer("google/flan-t5-tiny", "main", "aa11");
  const Finished g = run_ballast({"generate", "google/flan-t5-tiny", "say red", "--device", "cpu"});
  EXPECT_EQ(g.exit_code, 0) << g.err;
  const std::string texts = dir_.write("train.jsonl", "{\"input\":\"one\",\"output\":\"two\"}\n");
  const Finished t =
      run_ballast({"train", "--model_name_or_path", "google/flan-t5-tiny", "--train_file", texts,
                   "--output_dir", dir_.path("out"), "--max_steps", "1", "--device", "cpu",
                   "--per_device_train_batch_size", "1"});
  EXPECT_EQ(t.exit_code, 0) << t.err;
}

TEST_F(ModelIds, AModelOfTheCacheIsInspectedPlannedAndTrained) {
  support::TinyTraining run;
  run.add_clips(2, {4, 2, 4, 4});
  const std::string id = "org/tiny";
  hub_.add(id, "aa11", "transformer/diffusion_pytorch_model.safetensors",
           read_whole(run.model_path()));
  hub_.refer(id, "main", "aa11");
  const Finished parts = run_ballast({"inspect", id});
  ASSERT_EQ(parts.exit_code, 0) << parts.err;
  EXPECT_THAT(parts.out, AllOf(HasSubstr("model folder"), HasSubstr("aa11/transformer")));
  const Finished inspected = run_ballast({"inspect", id + "/transformer"});
  ASSERT_EQ(inspected.exit_code, 0) << inspected.err;
  EXPECT_THAT(inspected.out, HasSubstr("Wan diffusion transformer"));
  run.use_model(id);
  const Finished trained =
      run_ballast({"train", run.write_config("epochs = 1"), "--device", "cpu"});
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  hub_.add_broken(id, "aa11", "vae/x.safetensors");
  const Finished broken = run_ballast({"train", run.write_config("epochs = 1")});
  EXPECT_EQ(broken.exit_code, 4);
  EXPECT_THAT(broken.err, HasSubstr("1 file is missing: vae/x.safetensors"));
}

}  // namespace
}  // namespace ballast::test::model_ids_test
