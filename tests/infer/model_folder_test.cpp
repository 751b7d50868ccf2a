#include "infer/model_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace ballast::infer {
namespace {

namespace fs = std::filesystem;

// A folder with empty files of these names; a name that ends in / is a folder.
class Tree {
 public:
  explicit Tree(const std::vector<std::string>& names) {
    for (const std::string& n : names) {
      fs::create_directories(fs::path(at(n)).parent_path());
      if (!n.ends_with('/')) std::ofstream(at(n)) << "x";
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
  const Tree t({"snapshots/aa11/transformer/config.json", "snapshots/bb22/transformer/config.json",
                "refs/"});
  EXPECT_FAILS(t.find(), ErrorCode::input, "several snapshots");
  std::ofstream(t.at("refs/main")) << "bb22";
  EXPECT_EQ(t.name(t.find().transformer), "snapshots/bb22/transformer");
  std::ofstream(t.at("refs/main")) << "../../../etc";
  EXPECT_FAILS(t.find(), ErrorCode::input, "refs/main names none");
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
