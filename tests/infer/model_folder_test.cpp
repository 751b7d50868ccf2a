#include "infer/model_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/errors.h"
#include "tests/support/hub_tree.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensor_file.h"

namespace ballast::infer {
namespace {

namespace fs = std::filesystem;

// A folder with files of these names that hold nothing, safetensors files no tensors; a name that
// ends in / is a folder.
class Tree {
 public:
  explicit Tree(const std::vector<std::string>& names) {
    for (const std::string& n : names) {
      fs::create_directories(fs::path(at(n)).parent_path());
      if (n.ends_with(".safetensors")) {
        std::ofstream(at(n)) << std::string("\x08\0\0\0\0\0\0\0{}      ", 16);
      } else if (!n.ends_with('/')) {
        std::ofstream(at(n)) << "x";
      }
    }
  }
  std::string at(const std::string& name) const { return dir_.path(name); }
  std::string root() const { return dir_.path(""); }
  ModelFiles find(const std::string& below = "") const { return find_model_files(at(below)); }
  // Below the tree, with / for everything.
  std::string name(const std::string& path) const {
    return path.empty() ? "" : fs::path(path).lexically_relative(root()).generic_string();
  }

 private:
  test::TempDir dir_;
};

TEST(ModelFolder, PublishedFoldersHaveTwoExpertsAndTheirParts) {
  const Tree t({"low_noise_model/config.json", "high_noise_model/config.json", "Wan2.1_VAE.pth",
                "models_t5_umt5-xxl-enc-bf16.pth", "google/umt5-xxl/spiece.model"});
  const ModelFiles m = t.find();
  EXPECT_EQ(t.name(m.transformer), "low_noise_model");
  EXPECT_EQ(t.name(m.high_noise), "high_noise_model");
  EXPECT_EQ(t.name(m.vae), "Wan2.1_VAE.pth");
  EXPECT_EQ(t.name(m.text_encoder), "models_t5_umt5-xxl-enc-bf16.pth");
  EXPECT_EQ(t.name(m.tokenizer), "google/umt5-xxl");
}

TEST(ModelFolder, APublishedFolderOfShardsIsTheTransformer) {
  const Tree t({"diffusion_pytorch_model-00001-of-00003.safetensors", "config.json",
                "Wan2.2_VAE.pth", "models_t5_umt5-xxl-enc-bf16.pth"});
  const ModelFiles m = t.find();
  EXPECT_EQ(fs::path(m.transformer), fs::path(t.root()));
  EXPECT_EQ(m.high_noise, "");
  EXPECT_EQ(t.name(m.vae), "Wan2.2_VAE.pth");
}

TEST(ModelFolder, DiffusersFirstTransformerIsTheHighNoiseExpert) {
  const Tree t({"transformer/config.json", "transformer_2/config.json", "vae/config.json",
                "text_encoder/config.json", "tokenizer/tokenizer.json"});
  const ModelFiles m = t.find();
  EXPECT_EQ(t.name(m.transformer), "transformer_2");
  EXPECT_EQ(t.name(m.high_noise), "transformer");
  EXPECT_EQ(t.name(m.vae), "vae");
  EXPECT_EQ(t.name(m.text_encoder), "text_encoder");
  EXPECT_EQ(t.name(m.tokenizer), "tokenizer");
  const Tree one({"transformer/config.json"});
  EXPECT_EQ(one.name(one.find().transformer), "transformer");
  EXPECT_EQ(one.find().high_noise, "");
}

TEST(ModelFolder, ComfyFoldersAreLookedThroughByFileName) {
  const Tree t({"diffusion_models/wan2.2_t2v_high_noise_14B_fp8_scaled.safetensors",
                "diffusion_models/wan2.2_t2v_low_noise_14B_fp8_scaled.safetensors",
                "diffusion_models/flux1.safetensors", "vae/wan_2.1_vae.safetensors",
                "vae/ae.safetensors", "text_encoders/clip_l.safetensors",
                "text_encoders/umt5_xxl_fp8_e4m3fn_scaled.safetensors"});
  for (const std::string& from :
       {std::string(),
        std::string("diffusion_models/wan2.2_t2v_high_noise_14B_fp8_scaled.safetensors")}) {
    const ModelFiles m = t.find(from);
    EXPECT_EQ(t.name(m.transformer),
              "diffusion_models/wan2.2_t2v_low_noise_14B_fp8_scaled.safetensors");
    EXPECT_EQ(t.name(m.high_noise),
              "diffusion_models/wan2.2_t2v_high_noise_14B_fp8_scaled.safetensors");
    EXPECT_EQ(t.name(m.vae), "vae/wan_2.1_vae.safetensors");
    EXPECT_EQ(t.name(m.text_encoder), "text_encoders/umt5_xxl_fp8_e4m3fn_scaled.safetensors");
  }
}

// The usual ComfyUI folder has both.
TEST(ModelFolder, OfTwoVaesTheOneOfTheTransformerIsTaken) {
  for (const auto& [first, second] :
       {std::pair("vae/wan_2.1_vae.safetensors", "vae/wan2.2_vae.safetensors"),
        std::pair("vae/Wan2_1_VAE_bf16.safetensors", "vae/Wan2_2_VAE_bf16.safetensors")}) {
    const std::string large = "diffusion_models/wan2.2_t2v_low_noise_14B_fp16.safetensors",
                      small = "diffusion_models/wan2.2_ti2v_5B_fp16.safetensors";
    const Tree t({large, small, first, second, "text_encoders/umt5_xxl.safetensors",
                  "text_encoders/spiece.model"});
    EXPECT_EQ(t.name(t.find(large).vae), first);
    EXPECT_EQ(t.name(t.find(small).vae), second);
    EXPECT_EQ(t.name(t.find(small).tokenizer), "text_encoders");
  }
}

TEST(ModelFolder, SeveralTransformersAreNotGuessedAt) {
  const Tree t({"diffusion_models/wan2.2_ti2v_5B_fp16.safetensors",
                "diffusion_models/wan2.1_t2v_1.3B_fp16.safetensors"});
  EXPECT_FAILS(t.find(), ErrorCode::input, "several transformers");
  EXPECT_EQ(t.name(t.find("diffusion_models/wan2.2_ti2v_5B_fp16.safetensors").transformer),
            "diffusion_models/wan2.2_ti2v_5B_fp16.safetensors");
}

TEST(ModelFolder, OfAHuggingFaceCacheTheSnapshotThatMainNamesIsTaken) {
  const Tree t({"snapshots/aa11/transformer/x.safetensors",
                "snapshots/bb22/transformer/x.safetensors", "refs/"});
  std::ofstream(t.at("refs/main")) << "bb22";
  EXPECT_EQ(t.name(t.find().transformer), "snapshots/bb22/transformer");
  std::ofstream(t.at("refs/main")) << "aa11";
  EXPECT_EQ(t.name(t.find().transformer), "snapshots/aa11/transformer");
}

TEST(ModelFolder, AnIdOfTheHubIsFoundInTheCache) {
  support::HubTree hub;
  hub.add("Wan-AI/Wan2.2-TI2V-5B", "aa11", "transformer/x.safetensors", "x");
  EXPECT_EQ(find_model_files("Wan-AI/Wan2.2-TI2V-5B").transformer,
            hub.snapshot("Wan-AI/Wan2.2-TI2V-5B", "aa11") + "/transformer");
  const auto gone = test::error_of([] { find_model_files("someone/something"); });
  ASSERT_TRUE(gone);
  EXPECT_EQ(gone->advice().at(0).change,
            "hf download someone/something --local-dir someone/something");
}

TEST(ModelFolder, ComfyUIsOwnFolderHasItsModelsBelow) {
  const Tree t({"models/diffusion_models/video/wan2.1_t2v_1.3B_fp16.safetensors",
                "models/diffusion_models/flux1.safetensors",
                "models/text_encoders/umt5_xxl_fp16.safetensors",
                "models/vae/wan_2.1_vae.safetensors", "main.py"});
  for (const char* from :
       {"", "models", "models/diffusion_models/video/wan2.1_t2v_1.3B_fp16.safetensors"}) {
    const ModelFiles m = t.find(from);
    EXPECT_EQ(t.name(m.transformer),
              "models/diffusion_models/video/wan2.1_t2v_1.3B_fp16.safetensors");
    EXPECT_EQ(t.name(m.vae), "models/vae/wan_2.1_vae.safetensors");
    EXPECT_EQ(t.name(m.text_encoder), "models/text_encoders/umt5_xxl_fp16.safetensors");
  }
  EXPECT_TRUE(is_comfy_folder(t.at("")));
  EXPECT_FALSE(is_comfy_folder(t.at("models/vae")));
}

TEST(ModelFolder, OlderNamesOfComfyFoldersAreKnown) {
  const Tree t({"unet/wan2.1_t2v_1.3B_fp16.safetensors", "clip/umt5_xxl_fp16.safetensors",
                "clip/clip_l.safetensors", "vae/wan_2.1_vae.safetensors"});
  EXPECT_EQ(t.name(t.find().transformer), "unet/wan2.1_t2v_1.3B_fp16.safetensors");
  EXPECT_EQ(t.name(t.find().text_encoder), "clip/umt5_xxl_fp16.safetensors");
}

TEST(ModelFolder, SeveralPartsThatMatchAreListedWhereOneIsNeeded) {
  const Tree t({"diffusion_models/wan2.1_t2v_1.3B_fp16.safetensors", "vae/wan_2.1_vae.safetensors",
                "vae/Wan2_1_VAE_bf16.safetensors", "text_encoders/umt5_xxl_fp16.safetensors",
                "text_encoders/umt5_xxl_fp8_e4m3fn_scaled.safetensors"});
  const ModelFiles m = t.find();
  EXPECT_EQ(m.vae, "");
  EXPECT_EQ(m.vae_choices.size(), 2u);
  EXPECT_EQ(m.text_encoder, "");
  ASSERT_EQ(m.text_encoder_choices.size(), 2u);
  const auto error =
      test::error_of([&] { require_one(m.text_encoder_choices, "text encoder", "--t5 FILE"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::input);
  EXPECT_THAT(error->what(), ::testing::AllOf(::testing::HasSubstr("umt5_xxl_fp16.safetensors"),
                                              ::testing::HasSubstr("fp8_e4m3fn_scaled")));
  EXPECT_EQ(error->advice().at(0).change, "--t5 FILE");
  require_one({}, "text encoder", "--t5 FILE");
}

TEST(ModelFolder, TheTokenizerInsideTheTextEncoderIsTakenWhereThereIsNoOther) {
  const Tree t({"diffusion_models/wan.safetensors", "text_encoders/"});
  test::TempDir dir;
  support::TensorFile()
      .add_bytes("spiece_model", FileDType::u8, {3}, "abc")
      .write(dir, "umt5.safetensors");
  fs::copy_file(dir.path("umt5.safetensors"), t.at("text_encoders/umt5.safetensors"));
  EXPECT_EQ(t.name(t.find().tokenizer), "text_encoders/umt5.safetensors");
  std::ofstream(t.at("text_encoders/tokenizer.json")) << "{}";
  EXPECT_EQ(t.name(t.find().tokenizer), "text_encoders");
}

TEST(ModelFolder, AOneFileCheckpointIsAllOfItsParts) {
  const Tree t({"checkpoints/sdxl.safetensors", "vae/wan_2.1_vae.safetensors"});
  test::TempDir dir;
  support::TensorFile()
      .add("model.diffusion_model.x", DType::f32, {1}, 1)
      .add("first_stage_model.x", DType::f32, {1}, 1)
      .add("text_encoders.umt5xxl.transformer.x", DType::f32, {1}, 1)
      .add_bytes("text_encoders.spiece_model", FileDType::u8, {3}, "abc")
      .write(dir, "one.safetensors");
  const std::string one = "checkpoints/wan2.1_all_in_one.safetensors";
  fs::copy_file(dir.path("one.safetensors"), t.at(one));
  for (const std::string& from : {std::string(), one}) {
    const ModelFiles m = t.find(from);
    EXPECT_EQ(t.name(m.transformer), one);
    EXPECT_EQ(t.name(m.vae), one);
    EXPECT_EQ(t.name(m.text_encoder), one);
    EXPECT_EQ(t.name(m.tokenizer), one);
  }
}

TEST(ModelFolder, NothingToFindIsSaid) {
  const Tree t({"notes/readme.txt", "vae/"});
  EXPECT_FAILS(t.find(), ErrorCode::input, "holds no transformer");
  EXPECT_FAILS(t.find("not_there"), ErrorCode::input, "no such file");
}

TEST(GenerationDefaults, AreThePublishersForEveryModel) {
  const auto of = [](const char* name, int experts) {
    return generation_defaults(*wan::find_preset(name), experts);
  };
  EXPECT_EQ(of("wan2.2-ti2v-5b", 1).frames, 121);
  EXPECT_EQ(of("wan2.2-ti2v-5b", 1).fps, 24);
  EXPECT_EQ(of("wan2.2-t2v-a14b", 2).shift, 12);
  EXPECT_EQ(of("wan2.2-t2v-a14b", 2).high_guidance, 4);
  EXPECT_EQ(of("wan2.2-i2v-a14b", 2).boundary, 0.9);
  EXPECT_EQ(of("wan2.1-t2v-14b", 1).steps, 50);
  EXPECT_EQ(of("wan2.1-t2v-1.3b", 1).width, 832);
}

}  // namespace
}  // namespace ballast::infer
