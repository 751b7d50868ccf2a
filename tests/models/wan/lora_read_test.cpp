#include "models/wan/lora_read.h"

#include <gtest/gtest.h>

#include "core/to_size.h"
#include "tests/support/errors.h"
#include "tests/support/tensor_file.h"

namespace ballast::wan::lora_read_test {
namespace {

using support::sample_values;
using support::TensorFile;
using test::TempDir;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::int64_t kRank = 4, kIn = 16, kOut = 24;

std::vector<float> all(const LoraNumbers& n) {
  std::vector<float> v(to_size(n.elements()));
  n.read(0, v);
  return v;
}

// blocks.3.ffn.0 with the factors of seeds 1 and 2.
TensorFile& add_pair(TensorFile& file, const std::string& down, const std::string& up) {
  return file.add(down, DType::f32, {kRank, kIn}, 1).add(up, DType::f32, {kOut, kRank}, 2);
}

TEST(LoraReader, EveryDialectGivesTheSameModule) {
  struct Case {
    LoraDialect dialect;
    std::string down, up, alpha;
  };
  const std::vector<Case> cases = {
      {LoraDialect::comfy, "diffusion_model.blocks.3.ffn.0.lora_A.weight",
       "diffusion_model.blocks.3.ffn.0.lora_B.weight", ""},
      {LoraDialect::comfy, "diffusion_model.blocks.3.ffn.0.lora_down.weight",
       "diffusion_model.blocks.3.ffn.0.lora_up.weight", "diffusion_model.blocks.3.ffn.0.alpha"},
      {LoraDialect::kohya, "lora_unet_blocks_3_ffn_0.lora_down.weight",
       "lora_unet_blocks_3_ffn_0.lora_up.weight", "lora_unet_blocks_3_ffn_0.alpha"},
      {LoraDialect::kohya, "lora_unet__blocks_3_ffn_0.lora_down.weight",
       "lora_unet__blocks_3_ffn_0.lora_up.weight", "lora_unet__blocks_3_ffn_0.alpha"},
      {LoraDialect::diffusers, "transformer.blocks.3.ffn.net.0.proj.lora_A.weight",
       "transformer.blocks.3.ffn.net.0.proj.lora_B.weight", ""},
      {LoraDialect::diffusers, "blocks.3.ffn.net.0.proj.lora_A.weight",
       "blocks.3.ffn.net.0.proj.lora_B.weight", ""},
      {LoraDialect::diffsynth, "blocks.3.ffn.0.lora_A.default.weight",
       "blocks.3.ffn.0.lora_B.default.weight", ""},
      {LoraDialect::peft, "base_model.model.blocks.3.ffn.0.lora_A.weight",
       "base_model.model.blocks.3.ffn.0.lora_B.weight", ""},
  };
  for (const Case& c : cases) {
    const TempDir dir;
    TensorFile file({{"format", "pt"}, {"trigger", "word"}});
    add_pair(file, c.down, c.up);
    if (!c.alpha.empty()) file.add(c.alpha, DType::bf16, {}, std::vector<float>{2});
    const LoraReader lora = LoraReader::open(file.write(dir));
    EXPECT_EQ(lora.dialect(), c.dialect) << c.down;
    EXPECT_EQ(lora.metadata().at("trigger"), "word");
    EXPECT_THAT(lora.unused(), IsEmpty());
    ASSERT_EQ(lora.modules().size(), 1u);
    const LoraModule& m = lora.modules()[0];
    EXPECT_EQ(m.name, "blocks.3.ffn.0");
    EXPECT_EQ(m.rank, kRank);
    EXPECT_EQ(m.alpha, c.alpha.empty() ? 4 : 2) << c.down;
    EXPECT_EQ(m.in(), kIn);
    EXPECT_EQ(m.out(), kOut);
    EXPECT_EQ(all(m.down), sample_values(1, kRank * kIn));
    EXPECT_EQ(all(m.up), sample_values(2, kRank * kOut));
  }
}

TEST(LoraReader, DifferencesStandBesideFactorsOrAlone) {
  const TempDir dir;
  TensorFile file;
  add_pair(file, "diffusion_model.blocks.3.ffn.0.lora_down.weight",
           "diffusion_model.blocks.3.ffn.0.lora_up.weight")
      .add("diffusion_model.blocks.3.ffn.0.diff_b", DType::f16, {kOut}, 3)
      .add("diffusion_model.blocks.12.norm3.diff", DType::f32, {kIn}, 4)
      .add("diffusion_model.blocks.12.norm3.diff_b", DType::f32, {kIn}, 5)
      .add("diffusion_model.head.head.diff_b", DType::f32, {8}, 6)
      .add("lora_te_text_model.alpha", DType::f32, {}, std::vector<float>{1});
  const LoraReader lora = LoraReader::open(file.write(dir));
  std::vector<std::string> names;
  for (const LoraModule& m : lora.modules()) names.push_back(m.name);
  EXPECT_THAT(names, ElementsAre("head.head", "blocks.3.ffn.0", "blocks.12.norm3"));
  EXPECT_EQ(lora.find("head.head")->rank, 0);
  EXPECT_FALSE(lora.find("head.head")->diff);
  EXPECT_EQ(lora.find("blocks.3.ffn.0")->diff_b->dtype, DType::f16);
  EXPECT_EQ(all(*lora.find("blocks.12.norm3")->diff), sample_values(4, kIn));
  EXPECT_EQ(lora.find("blocks.12.norm4"), nullptr);
  EXPECT_THAT(lora.unused(), ElementsAre("lora_te_text_model.alpha"));
}

TEST(LoraReader, AlphaOfPeftFilesComesFromTheirConfig) {
  const auto alpha = [](const TempDir& dir, const std::string& name, Metadata metadata) {
    TensorFile file(std::move(metadata));
    add_pair(file, "transformer.blocks.3.ffn.net.0.proj.lora_A.weight",
             "transformer.blocks.3.ffn.net.0.proj.lora_B.weight");
    return LoraReader::open(file.write(dir, name)).modules()[0].alpha;
  };
  const auto metadata = [](const std::string& json) {
    return Metadata{{"lora_adapter_metadata", json}};
  };
  const TempDir dir;
  EXPECT_EQ(alpha(dir, "a.safetensors", metadata("{}")), 4);
  EXPECT_EQ(
      alpha(dir, "a.safetensors", metadata(R"({"transformer.r":4,"transformer.lora_alpha":16})")),
      16);
  EXPECT_EQ(alpha(dir, "a.safetensors",
                  metadata(R"({"transformer.lora_alpha":16,"transformer.use_rslora":true})")),
            32);  // times sqrt(4)
  EXPECT_EQ(alpha(dir, "a.safetensors",
                  metadata(R"({"transformer.lora_alpha":16,)"
                           R"("transformer.alpha_pattern":{"ffn.net.0.proj":3,"attn1.to_q":5}})")),
            3);
  EXPECT_FAILS(
      alpha(dir, "a.safetensors", metadata(R"({"transformer.alpha_pattern":{"ffn.*":3}})")),
      ErrorCode::input, "regular expression");
  EXPECT_FAILS(alpha(dir, "a.safetensors", metadata(R"({"transformer.use_dora":true})")),
               ErrorCode::input, "DoRA");
  EXPECT_FAILS(alpha(dir, "a.safetensors", metadata("[1")), ErrorCode::input, "lora.peft");
  dir.write("adapter_config.json", R"({"r":4,"lora_alpha":8})");
  EXPECT_EQ(alpha(dir, "adapter_model.safetensors", {}), 8);
  EXPECT_EQ(alpha(dir, "a.safetensors", {}), 4);  // the config is another file's
}

TEST(LoraReader, RefusesWhatItWouldMisreadAndNamesTheKey) {
  const auto refuses = [](auto&& fill, const std::string& text) {
    const TempDir dir;
    TensorFile file;
    fill(file);
    const std::string path = file.write(dir);
    EXPECT_FAILS(LoraReader::open(path), ErrorCode::input, text);
  };
  const std::string q = "diffusion_model.blocks.0.self_attn.q";
  const auto pair = [&](TensorFile& f) -> TensorFile& {
    return add_pair(f, q + ".lora_A.weight", q + ".lora_B.weight");
  };
  refuses(
      [&](TensorFile& f) {
        f.add(q + ".lora_A.weight", DType::f32, {4, 8}, 1);
      },
      q + ".lora_A.weight: the second factor of blocks.0.self_attn.q is missing");
  refuses(
      [&](TensorFile& f) {
        f.add(q + ".lora_B.weight", DType::f32, {8, 4}, 1);
      },
      "the first factor");
  refuses([&](TensorFile& f) { f.add(q + ".alpha", DType::f32, {}, 1); }, "alpha without factors");
  refuses(
      [&](TensorFile& f) {
        f.add(q + ".lora_A.weight", DType::f32, {4, 8}, 1);
        f.add(q + ".lora_B.weight", DType::f32, {8, 5}, 1);
      },
      "factors [4, 8] and [8, 5]");
  refuses(
      [&](TensorFile& f) {
        f.add(q + ".lora_A.weight", DType::f32, {0, 8}, 1);
        f.add(q + ".lora_B.weight", DType::f32, {8, 0}, 1);
      },
      "do not fit");
  refuses(
      [&](TensorFile& f) {
        f.add(q + ".lora_A.weight", DType::f32, {4}, 1);
        f.add(q + ".lora_B.weight", DType::f32, {4}, 1);
      },
      "do not fit");
  refuses([&](TensorFile& f) { pair(f).add(q + ".alpha", DType::f32, {2}, 1); }, "one number");
  refuses([&](TensorFile& f) { pair(f).add(q + ".alpha", DType::f32, {}, std::vector{NAN}); },
          "alpha is nan");
  refuses([&](TensorFile& f) { pair(f).add_bytes(q + ".alpha", FileDType::i8, {}, "a"); }, "i8");
  refuses([&](TensorFile& f) { pair(f).add(q + ".dora_scale", DType::f32, {24}, 1); },
          q + ".dora_scale: Ballast does not read this kind of adapter");
  refuses(
      [&](TensorFile& f) {
        pair(f).add(q + ".lora_down.weight", DType::f32, {4, 16}, 1);
      },
      "is the same");
  refuses(
      [&](TensorFile& f) {
        add_pair(f, "diffusion_model.blocks.99999.ffn.0.lora_A.weight",
                 "diffusion_model.blocks.99999.ffn.0.lora_B.weight");
      },
      "no model has 99999 blocks");
  refuses(
      [&](TensorFile& f) {
        f.add("blocks.0.self_attn.q.weight", DType::f32, {4, 4}, 1);
      },
      "holds no LoRA for this model");
  refuses(
      [&](TensorFile& f) {
        pair(f).add(q + ".alpha", DType::f32, {}, std::vector<float>{2});
        f.add(q + ".lora_B.bias", DType::f32, {24}, 1);
      },
      "only scale 1");
}

Config small() {
  return {.name = "small",
          .description = "",
          .dim = kIn,
          .ffn_dim = kOut,
          .heads = 2,
          .layers = 4,
          .in_dim = 6,
          .out_dim = 4,
          .freq_dim = 8,
          .text_dim = 10,
          .text_len = 3};
}

TEST(LoraReader, ShapesAreThoseOfTheModelWhereOneIsGiven) {
  const Config model = small();
  const auto open = [&](const std::string& module, const Shape& down, const Shape& up) {
    const TempDir dir;
    TensorFile file;
    file.add("diffusion_model." + module + ".lora_A.weight", DType::f32, down, 1);
    file.add("diffusion_model." + module + ".lora_B.weight", DType::f32, up, 2);
    LoraReader::open(file.write(dir), &model);
  };
  open("blocks.3.ffn.0", {kRank, kIn}, {kOut, kRank});
  open("patch_embedding", {kRank, 6, 1, 2, 2}, {kIn, kRank, 1, 1, 1});
  EXPECT_FAILS(open("blocks.3.ffn.0", {kRank, kIn + 1}, {kOut, kRank}), ErrorCode::input,
               "blocks.3.ffn.0.lora_A.weight: shape [4, 17] does not fit blocks.3.ffn.0.weight of "
               "the model, which is [24, 16]");
  EXPECT_FAILS(open("blocks.3.ffn.0", {kRank, kIn}, {kIn, kRank}), ErrorCode::input,
               "lora_B.weight: shape [16, 4]");
  EXPECT_FAILS(open("blocks.4.ffn.0", {kRank, kIn}, {kOut, kRank}), ErrorCode::input,
               "the model has no blocks.4.ffn.0.weight");
}

struct Target {
  std::vector<float> down = std::vector<float>(kRank * kIn, 7);
  std::vector<float> up = std::vector<float>(kRank * kOut, 7);

  LoraTarget at(const std::string& name, std::int64_t rank = kRank) {
    const auto into = [](std::vector<float>& to) {
      return [&to](std::span<const float> values) { to.assign(values.begin(), values.end()); };
    };
    return {name, {rank, kIn * kRank / rank}, {kOut * kRank / rank, rank}, into(down), into(up)};
  }
};

TEST(LoraInit, FillsFactorsAndFoldsAnotherScale) {
  const TempDir dir;
  TensorFile file;
  add_pair(file, "lora_unet_blocks_3_ffn_0.lora_down.weight",
           "lora_unet_blocks_3_ffn_0.lora_up.weight")
      .add("lora_unet_blocks_3_ffn_0.alpha", DType::f32, {}, std::vector<float>{2});
  const LoraReader lora = LoraReader::open(file.write(dir));
  Target same, folded, other;
  const std::vector<LoraTarget> targets = {same.at("blocks.3.ffn.0"), other.at("blocks.1.ffn.0")};
  EXPECT_THAT(init_factors(lora, targets, 0.5), ElementsAre("blocks.1.ffn.0"));
  EXPECT_EQ(same.down, sample_values(1, kRank * kIn));
  EXPECT_EQ(same.up, sample_values(2, kRank * kOut));
  EXPECT_EQ(other.down, std::vector<float>(kRank * kIn, 7));
  init_factors(lora, std::vector{folded.at("blocks.3.ffn.0")}, 1);
  for (std::size_t i = 0; i < same.down.size(); ++i) EXPECT_EQ(folded.down[i], same.down[i] / 2);
  EXPECT_EQ(folded.up, same.up);
}

TEST(LoraInit, RefusesModulesRanksAndDifferencesItCannotTrain) {
  const TempDir dir;
  TensorFile file;
  add_pair(file, "blocks.3.ffn.0.lora_A.default.weight", "blocks.3.ffn.0.lora_B.default.weight");
  const LoraReader lora = LoraReader::open(file.write(dir));
  Target t;
  EXPECT_FAILS(init_factors(lora, {}, 1), ErrorCode::input, "the first is blocks.3.ffn.0");
  EXPECT_FAILS(init_factors(lora, std::vector{t.at("blocks.3.ffn.0", 2)}, 1), ErrorCode::input,
               "has rank 4, this run trains rank 2");
  LoraTarget narrow = t.at("blocks.3.ffn.0");
  narrow.up[0] = kOut - 1;
  EXPECT_FAILS(init_factors(lora, std::vector{narrow}, 1), ErrorCode::input, "this run needs");
  file.add("diffusion_model.blocks.3.ffn.0.diff_b", DType::f32, {kOut}, 3);
  const LoraReader with_bias = LoraReader::open(file.write(dir));
  EXPECT_FAILS(init_factors(with_bias, std::vector{t.at("blocks.3.ffn.0")}, 1), ErrorCode::input,
               "training starts from factors alone");
}

}  // namespace
}  // namespace ballast::wan::lora_read_test
