// What a full fine-tune of a transformer leaves: a model as those who load it expect it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "infer/model_folder.h"
#include "models/wan/diffusers_config.h"
#include "models/wan/recognise.h"
#include "tests/support/errors.h"
#include "tests/support/tiny_training.h"
#include "tests/support/trained_run.h"
#include "train/checkpoint/sharded_weights.h"
#include "train/run/model_layout.h"

namespace ballast::train {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// Members as diffusers 0.35 writes them.
constexpr const char* kPipelineIndex = R"({
  "_class_name": "WanPipeline",
  "_diffusers_version": "0.35.0",
  "boundary_ratio": null,
  "expand_timesteps": false,
  "scheduler": ["diffusers", "UniPCMultistepScheduler"],
  "text_encoder": ["transformers", "UMT5EncoderModel"],
  "tokenizer": ["transformers", "T5TokenizerFast"],
  "transformer": ["diffusers", "WanTransformer3DModel"],
  "transformer_2": [null, null],
  "vae": ["diffusers", "AutoencoderKLWan"]
}
)";
constexpr const char* kFullFineTune = "[optimizer]\ntype = 'adamw'\nlr = 1e-3\n";

bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  return fs::equivalent(a, b, error);
}

struct ListedTensors {
  std::map<std::string, Shape> shapes;
  std::set<FileDType> types;
};
ListedTensors listed_tensors(const std::string& path) {
  ListedTensors all;
  const WeightFiles file = WeightFiles::open(path);
  for (const WeightTensor& t : file.tensors()) {
    all.shapes[std::string(t.entry->name)] = t.entry->shape;
    all.types.insert(t.entry->dtype);
  }
  return all;
}

class FineTuneFiles : public ::testing::Test {
 protected:
  FineTuneFiles() : training_(support::trainable_config(1)) {
    training_.add_clips(2, {4, 1, 4, 4});
  }

  // A transformer with diffusers' names; kind: its weights differ from those of another kind.
  void write_transformer(const std::string& folder, bool config = true,
                         const std::string& kind = "") {
    const wan::Config& c = training_.config();
    std::vector<std::vector<float>> kept;
    kept.reserve(4096);
    SafetensorsWriter writer({.metadata = {{"format", "pt"}}});
    each_parameter(c, [&](int, const std::string& name, const Shape& shape) {
      const auto& v = kept.emplace_back(support::parameter_values(kind + name, shape));
      writer.add(*wan::diffusers_name(name), DType::f32, shape, std::as_bytes(std::span(v)));
    });
    fs::create_directories(dir_.path(folder));
    writer.write(dir_.path(folder) + "/diffusion_pytorch_model.safetensors");
    if (config) dir_.write(folder + "/config.json", wan::diffusers_config_json(c));
  }
  // A whole pipeline; the VAE is large enough to be linked.
  std::string write_pipeline() {
    dir_.write("model/model_index.json", kPipelineIndex);
    write_transformer("model/transformer");
    dir_.write("model/vae/config.json", R"({"_class_name": "AutoencoderKLWan"})");
    dir_.write("model/vae/diffusion_pytorch_model.safetensors", std::string(3 << 20, 'v'));
    dir_.write("model/text_encoder/config.json", R"({"model_type": "umt5"})");
    dir_.write("model/text_encoder/model.safetensors", std::string(2 << 20, 't'));
    dir_.write("model/tokenizer/tokenizer.json", "{}");
    dir_.write("model/tokenizer/.lock", "");
    dir_.write("model/scheduler/scheduler_config.json", "{}");
    dir_.write("model/assets/logo.png", "png");
    training_.use_model(dir_.path("model"));
    return dir_.path("model");
  }
  std::string train(const std::string& extra = "epochs = 1", const support::Variant& how = {}) {
    outcome_ = support::train_in_process(training_.write_config(extra, kFullFineTune), how);
    return outcome_.folder + "/epoch1";
  }

  support::TinyTraining training_;
  test::TempDir dir_;
  TrainOutcome outcome_;
};

TEST_F(FineTuneFiles, AModelOfAPipelineIsAPipeline) {
  const std::string model = write_pipeline();
  const std::string saved = train("epochs = 1\nsave_dtype = 'bfloat16'");
  EXPECT_EQ(test::read_whole(saved + "/model_index.json"), kPipelineIndex);
  EXPECT_EQ(test::read_whole(saved + "/transformer/config.json"),
            test::read_whole(model + "/transformer/config.json"));
  const ListedTensors before = listed_tensors(model + "/transformer"),
                      after = listed_tensors(saved + "/transformer");
  EXPECT_EQ(after.shapes, before.shapes);
  EXPECT_THAT(after.types, ::testing::ElementsAre(FileDType::bf16)) << "save_dtype";
  for (const char* name :
       {"vae/diffusion_pytorch_model.safetensors", "text_encoder/model.safetensors"}) {
    EXPECT_TRUE(is_same_file(saved + "/" + name, model + "/" + name)) << name;
  }
  for (const char* name : {"vae/config.json", "tokenizer/tokenizer.json",
                           "scheduler/scheduler_config.json", "text_encoder/config.json"}) {
    EXPECT_EQ(test::read_whole(saved + "/" + name), test::read_whole(model + "/" + name)) << name;
    EXPECT_FALSE(is_same_file(saved + "/" + name, model + "/" + name))
        << "edited without the other";
  }
  for (const char* name : {"model.safetensors", "assets", "tokenizer/.lock", "transformer_2"}) {
    EXPECT_FALSE(fs::exists(saved + "/" + name)) << name;
  }
  EXPECT_TRUE(fs::exists(saved + "/run.toml"));
  const infer::ModelFiles found = infer::find_model_files(saved);
  EXPECT_EQ(found.transformer, saved + "/transformer");
  EXPECT_EQ(found.text_encoder, saved + "/text_encoder");
  EXPECT_EQ(found.tokenizer, saved + "/tokenizer");
}

TEST_F(FineTuneFiles, APipelineThatWasSavedIsTrainedFurther) {
  write_pipeline();
  const std::string first = train();
  training_.use_model(first);
  const std::string second = train();
  EXPECT_EQ(listed_tensors(second + "/transformer").shapes,
            listed_tensors(first + "/transformer").shapes);
  EXPECT_NE(test::read_whole(second + "/transformer/diffusion_pytorch_model.safetensors"),
            test::read_whole(first + "/transformer/diffusion_pytorch_model.safetensors"));
  EXPECT_TRUE(is_same_file(second + "/vae/diffusion_pytorch_model.safetensors",
                           dir_.path("model/vae/diffusion_pytorch_model.safetensors")));
}

// diffusers calls the low-noise expert transformer_2.
TEST_F(FineTuneFiles, OfTwoExpertsTheOtherIsShared) {
  const std::string model = write_pipeline();
  std::string index = kPipelineIndex;
  index.replace(index.find("[null, null]"), 12, R"(["diffusers", "WanTransformer3DModel"])");
  dir_.write("model/model_index.json", index);
  write_transformer("model/transformer_2", true, "low.");
  outcome_ = support::train_in_process(
      training_.write_config("epochs = 1", std::string("max_t = 0.5\n") + kFullFineTune));
  const std::string saved = outcome_.folder + "/epoch1";
  const std::string name = "/diffusion_pytorch_model.safetensors";
  EXPECT_EQ(listed_tensors(saved + "/transformer_2").shapes,
            listed_tensors(model + "/transformer_2").shapes);
  EXPECT_EQ(test::read_whole(saved + "/transformer" + name),
            test::read_whole(model + "/transformer" + name));
  EXPECT_NE(test::read_whole(saved + "/transformer_2" + name),
            test::read_whole(model + "/transformer_2" + name));
}

TEST_F(FineTuneFiles, ATransformerByItselfHasItsConfig) {
  for (const bool config : {true, false}) {
    const std::string folder = config ? "with" : "without";
    write_transformer(folder, config);
    training_.use_model(dir_.path(folder) + "/diffusion_pytorch_model.safetensors");
    const std::string saved = train();
    EXPECT_EQ(listed_tensors(saved).shapes, listed_tensors(dir_.path(folder)).shapes);
    EXPECT_TRUE(fs::exists(saved + "/diffusion_pytorch_model.safetensors"));
    EXPECT_EQ(test::read_whole(saved + "/config.json"),
              wan::diffusers_config_json(training_.config()));
  }
}

TEST_F(FineTuneFiles, ANameMakesAFolderBesideTheRun) {
  write_pipeline();
  train("epochs = 2\nsave_every_n_epochs = 1",
        {.name = "named", .change = [](TrainConfig& c) { c.output_name = "mine"; }});
  for (const char* name : {"mine-000001", "mine"}) {
    EXPECT_TRUE(fs::exists(training_.path("out/") + name + "/model_index.json")) << name;
    EXPECT_EQ(listed_tensors(training_.path("out/") + name + "/transformer").shapes.size(),
              listed_tensors(dir_.path("model/transformer")).shapes.size());
  }
  EXPECT_FALSE(fs::exists(training_.path("out/mine.safetensors")));
}

TEST_F(FineTuneFiles, AnOfficialModelHasItsConfigBesideIt) {
  const std::string file = training_.model_path();
  const std::string config = R"({"_class_name": "WanModel", "dim": 128, "text_len": 512})";
  fs::create_directories(dir_.path("official"));
  fs::copy(file, dir_.path("official/diffusion_pytorch_model.safetensors"));
  dir_.write("official/config.json", config);
  training_.use_model(dir_.path("official"));
  const std::string saved = train();
  EXPECT_EQ(test::read_whole(saved + "/config.json"), config);
  // diffusion-pipe's name, and the one that WanModel.from_pretrained() looks for.
  EXPECT_TRUE(
      is_same_file(saved + "/model.safetensors", saved + "/diffusion_pytorch_model.safetensors"));
  EXPECT_EQ(listed_tensors(saved).shapes, listed_tensors(file).shapes) << "one file with two names";
  EXPECT_EQ(infer::find_model_files(saved).transformer, saved);
  train("epochs = 1", {.name = "named", .change = [](TrainConfig& c) { c.output_name = "mine"; }});
  EXPECT_EQ(test::read_whole(training_.path("out/config.json")), config);
  EXPECT_TRUE(fs::exists(training_.path("out/mine.safetensors")));
  EXPECT_FALSE(fs::exists(training_.path("out/diffusion_pytorch_model.safetensors")));
}

TEST_F(FineTuneFiles, AFileWithoutConfigStaysOne) {
  const std::string saved = train();
  EXPECT_TRUE(fs::exists(saved + "/model.safetensors"));
  EXPECT_FALSE(fs::exists(saved + "/config.json"));
  EXPECT_FALSE(fs::exists(saved + "/diffusion_pytorch_model.safetensors"));
}

// What cannot be written in the end is said before the first step.
TEST_F(FineTuneFiles, ABrokenIndexIsSaidBeforeTheRun) {
  write_pipeline();
  dir_.write("model/model_index.json", "{\"transformer\": [");
  EXPECT_FAILS(train(), ErrorCode::input, "model_index.json");
  EXPECT_FALSE(fs::exists(training_.path("out")));
}

TEST(ModelLayout, ComponentsOutsideTheFolderAreLeftOut) {
  const test::TempDir dir;
  dir.write("model/model_index.json",
            R"({"transformer": ["a", "b"], "..": ["a", "b"], "../other": ["a", "b"],
                "": ["a", "b"], "vae\u0000": ["a", "b"]})");
  dir.write("other/secret.txt", "secret");
  dir.write("model/private/notes.txt", "private");
  dir.write("model/vae/config.json", "{}");
  dir.write("model/transformer/config.json", "{}");
  const ModelLayout layout = layout_of(dir.path("model/transformer/"), wan::Dialect::diffusers, "");
  ASSERT_EQ(layout.kind, ModelLayout::Kind::pipeline);
  EXPECT_EQ(layout.component, "transformer");
  fs::create_directories(dir.path("to/model"));
  write_diffusers(layout, support::trainable_config(), {}, {{"format", "pt"}},
                  dir.path("to/model"));
  EXPECT_TRUE(fs::exists(dir.path("to/model/transformer/diffusion_pytorch_model.safetensors")));
  EXPECT_FALSE(fs::exists(dir.path("to/other")));
  EXPECT_FALSE(fs::exists(dir.path("to/model/other")));
  EXPECT_FALSE(fs::exists(dir.path("to/model/private")));  // an empty name is the whole folder
  EXPECT_FALSE(fs::exists(dir.path("to/model/vae")));
}

TEST(ShardedWeights, HaveTheNamesOfTheirLibrary) {
  const test::TempDir dir;
  const std::vector<float> values(100, 1.5f);
  std::vector<SavedTensor> tensors;
  for (const char* name : {"a", "b", "c"}) {
    tensors.push_back(
        {.name = name, .dtype = DType::f32, .shape = {100}, .source = [&](auto& sink) {
           sink(std::as_bytes(std::span(values)));
         }});
  }
  const auto paths = write_sharded(
      dir.path(), tensors,
      {.stem = "diffusion_pytorch_model", .max_shard = Bytes{800}, .metadata = {{"format", "pt"}}});
  ASSERT_EQ(paths.size(), 3u);
  EXPECT_THAT(paths[1], HasSubstr("/diffusion_pytorch_model-00002-of-00002.safetensors"));
  EXPECT_THAT(paths[2], HasSubstr("/diffusion_pytorch_model.safetensors.index.json"));
  EXPECT_EQ(listed_tensors(dir.path()).shapes.size(), 3u);
}

}  // namespace
}  // namespace ballast::train
