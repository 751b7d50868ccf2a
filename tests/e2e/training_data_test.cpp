// Data that is not as it should be, or stops being so while a run reads it.

#include <gmock/gmock.h>

#include <limits>

#include "core/to_size.h"
#include "tests/e2e/training_process.h"

namespace ballast::test {
namespace {

namespace fs = std::filesystem;
using support::TinyTraining;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr data::LatentShape kShape = {4, 1, 4, 4};

// Does `fault` to a run of which a checkpoint and a LoRA are there. The run ends with this exit
// code and message; what was saved stays whole.
void expect_fault_in_run(const std::function<void(const TinyTraining&)>& fault, int exit_code,
                         const testing::Matcher<std::string>& message) {
  TinyTraining run;
  run.add_clips(4, kShape);
  const std::string out = run.path("out");
  TrainingProcess process(
      {run.write_config("epochs = 100000\nsteps_per_print = 100000\n"
                        "checkpoint_every_n_steps = 6\nsave_every_n_steps = 6")});
  ASSERT_TRUE(process.wait_for([&] { return steps_logged(out) >= 7; })) << process.err();
  fault(run);
  const Finished f = process.finish();
  EXPECT_EQ(f.exit_code, exit_code) << f.err;
  EXPECT_THAT(f.err, AllOf(message, HasSubstr("while reading sample clips/clip1"),
                           HasSubstr("while training in " + newest_run(out))));
  expect_whole_checkpoint(newest_run(out), 6);
  expect_whole_model(newest_run(out) + "/step6");
  // The log tells of the end as well.
  EXPECT_THAT(read_whole(newest_run(out) + "/run_log.jsonl"), HasSubstr("\"event\":\"failed\""));
}

std::string latent_of(const TinyTraining& run, const std::string& id) {
  return run.path("clips/latents/" + id + ".safetensors");
}
std::string text_of(const TinyTraining& run, const std::string& id) {
  return run.path("clips/text/" + id + ".safetensors");
}

void write_clip(const TinyTraining& run, const std::string& id, const data::LatentShape& shape,
                std::vector<float> latent, std::int64_t text_dim) {
  const std::vector<float> text(to_size(3 * text_dim), 0.5f);
  data::write_cached_sample(run.path("clips"), id, {.shape = shape, .latent = latent},
                            {.tokens = 3, .dim = text_dim, .rows = text, .caption = "a clip"},
                            {.durability = Durability::process});
}
std::vector<float> ones(const data::LatentShape& shape) {
  return std::vector<float>(to_size(shape.elements()), 1.0f);
}

TEST(TrainingData, ALatentFileThatVanishesIsNamed) {
  expect_fault_in_run(
      [](const TinyTraining& run) { fs::remove(latent_of(run, "clip1")); }, 6,
      AllOf(HasSubstr("latents/clip1.safetensors"), HasSubstr("No such file or directory")));
}

TEST(TrainingData, ALatentFileThatIsCutShortIsNamed) {
  expect_fault_in_run(
      [](const TinyTraining& run) { fs::resize_file(latent_of(run, "clip1"), 300); }, 4,
      HasSubstr("latents/clip1.safetensors"));
}

TEST(TrainingData, ALatentFileOfAnotherShapeIsNamed) {
  expect_fault_in_run(
      [](const TinyTraining& run) {
        const data::LatentShape other = {4, 1, 4, 8};
        write_clip(run, "clip1", other, ones(other), 8);
      },
      4, HasSubstr("is now 4x1x4x8, it was 4x1x4x4 when the run began"));
}

TEST(TrainingData, ANaNInALatentFileIsNamed) {
  expect_fault_in_run(
      [](const TinyTraining& run) {
        std::vector<float> latent = ones(kShape);
        latent[17] = std::numeric_limits<float>::quiet_NaN();
        write_clip(run, "clip1", kShape, latent, 8);
      },
      4, AllOf(HasSubstr("latents/clip1.safetensors"), HasSubstr("element 17 is nan")));
}

TEST(TrainingData, ACaptionThatCannotBeReadIsNamed) {
  expect_fault_in_run(
      [](const TinyTraining& run) {
        fs::remove(text_of(run, "clip1"));
        fs::create_directory(text_of(run, "clip1"));
      },
      6, HasSubstr("text/clip1.safetensors"));
}

// What is wrong before the run begins leaves no run behind.
void expect_refused(const TinyTraining& run, const std::string& config, int exit_code,
                    const testing::Matcher<std::string>& message) {
  const Finished f = train({config});
  EXPECT_EQ(f.exit_code, exit_code) << f.err;
  EXPECT_THAT(f.err, message);
  EXPECT_FALSE(fs::exists(run.path("out")));
}

TEST(TrainingData, AMissingDatasetIsNamed) {
  TinyTraining run;
  expect_refused(run, run.write_config(), 6,
                 AllOf(HasSubstr("run.toml line 2: dataset: " + run.path("clips")),
                       HasSubstr("No such file"), HasSubstr("1. the path of the dataset's file")));
}

TEST(TrainingData, AnEmptyDatasetIsNamed) {
  TinyTraining run;
  fs::create_directories(run.path("clips/latents"));
  fs::create_directories(run.path("clips/text"));
  expect_refused(run, run.write_config(), 4,
                 AllOf(HasSubstr(run.path("clips")), HasSubstr("the data set is empty")));
}

TEST(TrainingData, LatentsOfAnotherModelAreNamed) {
  TinyTraining run;
  const data::LatentShape sixteen = {16, 1, 4, 4};
  write_clip(run, "clip0", sixteen, ones(sixteen), 8);
  expect_refused(run, run.write_config(), 4,
                 AllOf(HasSubstr("latents/clip0.safetensors"),
                       HasSubstr("has 16 channels, the model takes 4")));
}

TEST(TrainingData, TextOfAnotherModelIsNamed) {
  TinyTraining run;
  write_clip(run, "clip0", kShape, ones(kShape), 12);
  expect_refused(run, run.write_config(), 4,
                 AllOf(HasSubstr("text/clip0.safetensors"),
                       HasSubstr("shape [3, 12]; the model takes at most 512 rows of 8")));
}

TEST(TrainingData, ACaptionThatIsMissingFromTheStartIsNamed) {
  TinyTraining run;
  run.add_clips(2, kShape);
  fs::remove(text_of(run, "clip1"));
  expect_refused(run, run.write_config(), 6, HasSubstr("text/clip1.safetensors"));
}

}  // namespace
}  // namespace ballast::test
