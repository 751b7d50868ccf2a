// A model that is not there, is no model, or is not the one a run was started with.

#include <gmock/gmock.h>

#include "io/safetensors_writer.h"
#include "tests/e2e/training_process.h"

namespace ballast::test {
namespace {

namespace fs = std::filesystem;
using support::TinyTraining;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Runs with `model` in place of the tiny one's path; nothing may be left behind.
void expect_refused(TinyTraining& run, const std::string& model, int exit_code,
                    const testing::Matcher<std::string>& message) {
  const std::string config = run.write_config();
  std::string text = read_whole(config);
  text.replace(text.find(run.model_path()), run.model_path().size(), model);
  std::ofstream(config) << text;
  const Finished f = train({config});
  EXPECT_EQ(f.exit_code, exit_code) << f.err;
  EXPECT_THAT(f.err, message);
  EXPECT_FALSE(fs::exists(run.path("out")));
}

// Copies the model, less the tensors that `leave_out` names.
void copy_model(const std::string& from, const std::string& to, const std::string& leave_out) {
  const WeightFiles file = WeightFiles::open(from);
  SafetensorsWriter writer;
  for (const WeightTensor& t : file.tensors()) {
    if (t.entry->name == leave_out) continue;
    writer.add(std::string(t.entry->name), file.dtype(t), t.entry->shape,
               [&file, t](const ByteSink& sink) {
                 std::vector<std::byte> bytes(t.entry->bytes);
                 file.read(t, bytes);
                 sink(bytes);
               });
  }
  writer.write(to, Durability::process);
}

class TrainingModel : public testing::Test {
 protected:
  TrainingModel() { run_.add_clips(2, {4, 1, 4, 4}); }
  TinyTraining run_;
  TempDir dir_;
};

TEST_F(TrainingModel, AMissingFileIsNamed) {
  expect_refused(run_, dir_.path("none.safetensors"), 4,
                 HasSubstr(dir_.path("none.safetensors") + " is not there"));
}

// Before anything is merged or planned around them.
TEST_F(TrainingModel, LorasThatItBeginsWithAreOpenedFirst) {
  const std::string rest =
      "[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'float32'\n{}"
      "[optimizer]\ntype = 'adamw'\nlr = 1e-3\n";
  for (const std::string& tables :
       {fmt::format("base_loras = ['{}']\n", dir_.path("none.safetensors")) +
            fmt::format(fmt::runtime(rest), ""),
        fmt::format(fmt::runtime(rest),
                    fmt::format("init_from_existing = '{}'\n", dir_.path("none.safetensors")))}) {
    for (const char* const command : {"plan", "train"}) {
      const Finished f = run_ballast({command, run_.write_config("epochs = 1", tables)});
      EXPECT_EQ(f.exit_code, 6) << f.err;
      EXPECT_THAT(f.err, HasSubstr("none.safetensors: cannot open"));
      EXPECT_FALSE(fs::exists(run_.path("out")));
    }
  }
}

TEST_F(TrainingModel, AFileOfSomethingElseIsNamed) {
  SafetensorsWriter writer;
  writer.add("conv.weight", DType::f32, {4},
             [](const ByteSink& sink) { sink(std::vector<std::byte>(16)); });
  writer.write(dir_.path("other.safetensors"), Durability::process);
  expect_refused(
      run_, dir_.path("other.safetensors"), 4,
      AllOf(HasSubstr("other.safetensors holds no Wan transformer"), HasSubstr("ballast inspect")));
}

TEST_F(TrainingModel, ABrokenHeaderIsNamed) {
  std::string bytes = read_whole(run_.model_path());
  bytes[20] = '\x01';
  const std::string path = dir_.write("broken.safetensors", bytes);
  expect_refused(run_, path, 4, HasSubstr(path));
}

TEST_F(TrainingModel, AFileThatIsCutShortIsNamed) {
  const std::string bytes = read_whole(run_.model_path());
  const std::string path = dir_.write("short.safetensors", bytes.substr(0, bytes.size() - 100));
  expect_refused(run_, path, 4, HasSubstr(path));
}

TEST_F(TrainingModel, AMissingTensorIsNamed) {
  const std::string path = dir_.path("holes.safetensors");
  copy_model(run_.model_path(), path, "blocks.1.ffn.0.weight");
  expect_refused(run_, path, 4, AllOf(HasSubstr(path), HasSubstr("blocks.1.ffn.0.weight")));
}

TEST_F(TrainingModel, AMissingShardIsNamed) {
  const WeightFiles file = WeightFiles::open(run_.model_path());
  std::string map;
  for (const WeightTensor& t : file.tensors()) {
    map += fmt::format("{}\"{}\": \"model-0000{}-of-00002.safetensors\"", map.empty() ? "" : ", ",
                       t.entry->name, t.entry->name.starts_with("blocks.1") ? 2 : 1);
  }
  dir_.write("model.safetensors.index.json", fmt::format("{{\"weight_map\": {{{}}}}}", map));
  fs::copy_file(run_.model_path(), dir_.path("model-00001-of-00002.safetensors"));
  expect_refused(run_, dir_.path(), 4, HasSubstr("model-00002-of-00002.safetensors"));
}

// A run with a checkpoint; then `change` and --resume. Exit 4, and every file is as it was.
class TrainingResume : public testing::Test {
 protected:
  TrainingResume() {
    run_.add_clips(2, {4, 1, 4, 4});
    const Finished f = train({run_.write_config("epochs = 3")});
    EXPECT_EQ(f.exit_code, 0) << f.err;
  }

  void expect_refused(const std::vector<std::string>& arguments,
                      const testing::Matcher<std::string>& message) {
    const auto before = contents_of(run_.path("out"));
    const Finished f = train(arguments);
    EXPECT_EQ(f.exit_code, 4) << f.err;
    EXPECT_THAT(f.err, AllOf(message, HasSubstr("what would help")));
    EXPECT_TRUE(before == contents_of(run_.path("out")));
  }

  TinyTraining run_;
};

TEST_F(TrainingResume, WithAnotherModelIsRefused) {
  // The same shapes, as the two experts of one model have them.
  const TempDir dir;
  std::string bytes = read_whole(run_.model_path());
  for (std::size_t i = bytes.size() / 2; i < bytes.size(); ++i) bytes[i] ^= 1;
  const std::string other = dir.write("other.safetensors", bytes);
  const std::string config = run_.write_config("epochs = 4");
  std::string text = read_whole(config);
  text.replace(text.find(run_.model_path()), run_.model_path().size(), other);
  std::ofstream(config) << text;
  expect_refused(
      {config, "--resume"},
      AllOf(HasSubstr("was trained on another model than " + other), HasSubstr("step-00000006")));
}

TEST_F(TrainingResume, WithAnotherSeedIsRefused) {
  expect_refused(
      {run_.write_config("epochs = 4"), "--resume", "--seed", "7"},
      AllOf(HasSubstr("was trained with seed 0, the configuration says 7"), HasSubstr("seed = 0")));
}

TEST_F(TrainingResume, WithAnotherRankIsRefused) {
  expect_refused({run_.write_config("epochs = 4",
                                    "[adapter]\ntype = 'lora'\nrank = 8\ndtype = 'float32'\n"
                                    "[optimizer]\ntype = 'adamw'\nlr = 1e-3\n"),
                  "--resume"},
                 AllOf(HasSubstr("tensor "), HasSubstr("[4, 128], expected [8, 128]")));
}

TEST_F(TrainingResume, WithAnotherOptimizerIsRefused) {
  expect_refused({run_.write_config("epochs = 4",
                                    "[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'float32'\n"
                                    "[optimizer]\ntype = 'adamw8bit'\nlr = 1e-3\n"),
                  "--resume"},
                 AllOf(HasSubstr("was trained with adamw"), HasSubstr("says adamw8bit"),
                       HasSubstr("--reset_optimizer")));
}

TEST_F(TrainingResume, WithoutARunIsRefused) {
  const TempDir empty;
  const Finished f =
      train({run_.write_config("epochs = 4"), "--output_dir", empty.path("out"), "--resume"});
  EXPECT_EQ(f.exit_code, 4) << f.err;
  EXPECT_THAT(f.err, HasSubstr("no run to resume"));
  EXPECT_FALSE(fs::exists(empty.path("out")));
}

}  // namespace
}  // namespace ballast::test
