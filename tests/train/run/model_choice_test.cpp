#include "train/run/model_choice.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "models/wan/config.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_training.h"
#include "tests/support/trained_run.h"
#include "train/config/read_config.h"
#include "train/run/prepared_run.h"

namespace ballast::train {
namespace {

using ::testing::HasSubstr;

// An A14B folder, as far as the choice looks at it.
class ModelFolder {
 public:
  explicit ModelFolder(const std::string& type = "i2v") {
    const std::string config = "{\"model_type\": \"" + type + "\", \"dim\": 5120}";
    for (const std::string name : {"low_noise_model", "high_noise_model"}) {
      dir_.write("m/" + name + "/config.json", config);
    }
  }
  std::string path() const { return dir_.path("m"); }
  std::string low() const { return dir_.path("m/low_noise_model"); }
  std::string high() const { return dir_.path("m/high_noise_model"); }
  const test::TempDir& dir() const { return dir_; }

  TrainConfig config() const {
    TrainConfig c;
    c.source = "run.toml";
    c.model.checkpoint = path();
    return c;
  }

 private:
  test::TempDir dir_;
};

TEST(ModelChoice, IsOpenWhereNothingSaysWhichExpert) {
  const ModelFolder folder;
  const ModelDecision decision = resolve_model(folder.config());
  const auto* both = std::get_if<AmbiguousModel>(&decision);
  ASSERT_NE(both, nullptr);
  EXPECT_EQ(both->low.transformer, folder.low());
  EXPECT_EQ(both->high.transformer, folder.high());
  EXPECT_EQ(both->low.boundary, 0.9);
  EXPECT_THAT(both->low_line, HasSubstr("transformer_path = '" + folder.low() + "'"));
  EXPECT_THAT(both->high_line, HasSubstr("min_t = 0.9"));
  const auto error = test::error_of([&] { (void)require_model(folder.config()); });
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::input);
  EXPECT_THAT(error->what(), HasSubstr(both->low_line));
  EXPECT_THAT(error->what(), HasSubstr(both->high_line));
}

TEST(ModelChoice, FollowsTheRangeOfTimesteps) {
  for (const auto& [type, boundary] : {std::pair("t2v", 0.875), std::pair("i2v", 0.9)}) {
    const ModelFolder folder(type);
    TrainConfig c = folder.config();
    c.timesteps.max_t = boundary;
    const ModelChoice low = require_model(c);
    EXPECT_EQ(low.transformer, folder.low());
    EXPECT_EQ(low.boundary, boundary);
    EXPECT_EQ(low.config_json, folder.low() + "/config.json");
    EXPECT_THAT(low.explanation, HasSubstr("low-noise"));
    c.timesteps = {};
    c.timesteps.min_t = boundary;
    EXPECT_EQ(require_model(c).transformer, folder.high());
    c.timesteps.min_t = boundary - 0.01;  // reaches over the boundary
    EXPECT_TRUE(std::holds_alternative<AmbiguousModel>(resolve_model(c)));
  }
}

TEST(ModelChoice, TakesBothExpertsWhenAsked) {
  const ModelFolder folder("t2v");
  TrainConfig c = folder.config();
  c.model.experts = Experts::both;
  const ModelChoice choice = require_model(c);
  EXPECT_EQ(choice.experts, Experts::both);
  EXPECT_EQ(choice.transformer, folder.low());
  EXPECT_EQ(choice.high_noise_transformer, folder.high());
  EXPECT_EQ(choice.boundary, 0.875);
  apply(choice, c);
  EXPECT_EQ(c.model.transformer, folder.low());
  EXPECT_EQ(c.model.high_noise_transformer, folder.high());
  EXPECT_EQ(c.model.boundary, 0.875);
  EXPECT_EQ(require_model(c).high_noise_transformer, folder.high());  // and it stays so
}

TEST(ModelChoice, FindsTheConfigOfASingleFile) {
  const ModelFolder folder;
  TrainConfig c = folder.config();
  c.model.transformer = folder.dir().write("x/wan_low_noise.safetensors", "");
  const ModelChoice choice = require_model(c);
  EXPECT_EQ(choice.transformer, c.model.transformer);
  EXPECT_EQ(choice.config_json, folder.low() + "/config.json");
  EXPECT_THAT(choice.explanation, HasSubstr("trained on all t"));
  folder.dir().write("m/config.json", "{\"model_type\": \"t2v\"}");
  EXPECT_EQ(require_model(c).config_json, folder.path() + "/config.json");
  c.timesteps.max_t = 0.875;
  EXPECT_EQ(require_model(c).explanation, "");
}

TEST(ModelChoice, TakesTheOnlyTransformerOfAFolder) {
  const test::TempDir dir;
  dir.write("m/config.json", "{\"model_type\": \"ti2v\"}");
  TrainConfig c;
  c.model.checkpoint = dir.path("m");
  EXPECT_EQ(require_model(c).transformer, dir.path("m"));
  EXPECT_EQ(require_model(c).boundary, 0);
  dir.write("d/transformer/config.json", "{}");
  c.model.checkpoint = dir.path("d");
  EXPECT_EQ(require_model(c).transformer, dir.path("d/transformer"));
}

TEST(ModelChoice, ReadsDiffusersTwoExperts) {
  const test::TempDir dir;
  dir.write("d/transformer/config.json", "{\"in_dim\": 16, \"out_dim\": 16}");
  dir.write("d/transformer_2/config.json", "{\"in_dim\": 36, \"out_dim\": 16}");
  TrainConfig c;
  c.model.checkpoint = dir.path("d");
  c.timesteps.max_t = 0.9;
  EXPECT_EQ(require_model(c).transformer, dir.path("d/transformer_2"));
  EXPECT_EQ(require_model(c).boundary, 0.9);
}

TEST(ModelChoice, FindsTheTransformersOfAComfyFolder) {
  const test::TempDir dir;
  const std::string empty("\x08\0\0\0\0\0\0\0{}      ", 16);  // no tensors
  const std::string low =
      dir.write("ComfyUI/models/diffusion_models/wan2.2_t2v_low_noise.safetensors", empty);
  TrainConfig c;
  c.model.checkpoint = dir.path("ComfyUI");
  EXPECT_EQ(require_model(c).transformer, low);
  const std::string high =
      dir.write("ComfyUI/models/diffusion_models/wan2.2_t2v_high_noise.safetensors", empty);
  EXPECT_FAILS(require_model(c), ErrorCode::input, "two experts");
  c.model.experts = Experts::both;
  EXPECT_EQ(require_model(c).transformer, low);
  EXPECT_EQ(require_model(c).high_noise_transformer, high);
  dir.write("ComfyUI/models/diffusion_models/wan2.1_t2v_1.3B.safetensors", empty);
  EXPECT_FAILS(require_model(c), ErrorCode::input, "several transformers");
}

TEST(ModelChoice, SaysWhatIsMissing) {
  TrainConfig c;
  c.model.checkpoint = "no/such/folder";
  EXPECT_FAILS(require_model(c), ErrorCode::input, "no/such/folder is not there");
  const test::TempDir dir;
  c.model.checkpoint = dir.path();
  c.model.transformer = dir.path("gone.safetensors");
  EXPECT_FAILS(require_model(c), ErrorCode::input, "gone.safetensors is not there");
  c.model.transformer = "";
  c.model.experts = Experts::both;
  EXPECT_FAILS(require_model(c), ErrorCode::input, "has no low_noise_model");
  const ModelFolder folder;
  TrainConfig contradiction = folder.config();
  contradiction.model.experts = Experts::both;
  contradiction.model.transformer = folder.low();
  EXPECT_FAILS(require_model(contradiction), ErrorCode::input, "contradict");
}

TEST(SkyReels, IsKnownByTheNameOfItsFolder) {
  const wan::Config model = *wan::find_preset("wan2.1-t2v-14b");
  const auto named = [](const char* path) {
    ModelConfig c;
    c.checkpoint = path;
    return c;
  };
  EXPECT_EQ(needs_of(named("models/SkyReels-V2-T2V-14B/"), model).fps, 24);
  EXPECT_EQ(cache_name_of(named("models/SkyReels-V2-T2V-14B"), model), "skyreels_v2");
  EXPECT_EQ(cache_name_of(named("SkyReels-V2-I2V"), *wan::find_preset("wan2.2-i2v-a14b")),
            "skyreels_v2_i2v");
  EXPECT_EQ(needs_of(named("/c/models--Skywork--SkyReels-V2-T2V-14B/snapshots/aa11"), model).fps,
            24);
  EXPECT_EQ(needs_of(named("skyreels/Wan2.1-T2V-14B"), model).fps, 16);
  EXPECT_EQ(cache_name_of(named("skyreels/Wan2.1-T2V-14B"), model), "wan");
}

// --task says one thing, the file another: its patch embedding decides.
TEST(ModelChoice, RefusesAFileThatIsNotOfTheTaskThatIsNamed) {
  support::TinyTraining text;
  support::TinyTraining image(support::trainable_config(2, 8));
  text.add_clips(2, {4, 1, 4, 4});
  image.add_clips(2, {4, 1, 4, 4});
  const auto prepare = [](const support::TinyTraining& t, const std::string& task) {
    return prepare_run(read_config(std::vector<std::string>{
                           "--dit", t.model_path(), "--dataset_config", t.path("clips"),
                           "--output_dir", t.path("out"), "--task", task}),
                       support::small_machine(), Purpose::plan);
  };
  for (const char* task : {"t2v-A14B", "t2v-14B", "t2i-14B"}) {
    EXPECT_EQ(prepare(text, task).model().conditioning(), 0);
    EXPECT_FAILS(prepare(image, task), ErrorCode::input, std::string("--task ") + task);
  }
  EXPECT_EQ(prepare(image, "i2v-A14B").model().conditioning(), 8);
  const auto error = test::error_of([&] { prepare(text, "i2v-A14B"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::input);
  EXPECT_THAT(error->what(), HasSubstr("--task i2v-A14B: expected an image-to-video model, with "
                                       "12 input channels, but " +
                                       text.model_path() + " is a text-to-video model, with 4"));
  EXPECT_EQ(error->advice().at(1).change, "--task t2v-A14B");
  // A file of TI2V-5B is of neither.
  const support::TinyTraining both(support::trainable_ti2v());
  EXPECT_FAILS(prepare(both, "t2v-A14B"), ErrorCode::input, "TI2V-5B");
}

// Of two experts each is looked at.
TEST(ModelChoice, RefusesASecondExpertThatIsNotOfTheTask) {
  support::TinyTraining text;
  support::TinyTraining image(support::trainable_config(2, 8));
  image.add_clips(2, {4, 1, 4, 4});
  EXPECT_FAILS(prepare_run(read_config(std::vector<std::string>{
                               "--dit", image.model_path(), "--dit_high_noise", text.model_path(),
                               "--dataset_config", image.path("clips"), "--output_dir",
                               image.path("out"), "--task", "i2v-A14B"}),
                           support::small_machine(), Purpose::plan),
               ErrorCode::input, text.model_path() + " is a text-to-video model");
}

}  // namespace
}  // namespace ballast::train
