#include "models/wan/lora_file.h"

#include <gtest/gtest.h>

namespace ballast::wan {
namespace {

void expect_key(std::string_view key, LoraDialect dialect, std::string_view module,
                LoraKey::Part part) {
  const auto parsed = parse_lora_key(key);
  ASSERT_TRUE(parsed.has_value()) << key;
  EXPECT_EQ(name_of(parsed->dialect), name_of(dialect)) << key;
  EXPECT_EQ(parsed->module, module) << key;
  EXPECT_EQ(parsed->part, part) << key;
}

TEST(LoraKey, EveryDialectGivesTheOfficialModule) {
  using Part = LoraKey::Part;
  expect_key("diffusion_model.blocks.12.cross_attn.k.lora_A.weight", LoraDialect::comfy,
             "blocks.12.cross_attn.k", Part::down);
  expect_key("diffusion_model.blocks.0.ffn.0.lora_up.weight", LoraDialect::comfy, "blocks.0.ffn.0",
             Part::up);
  expect_key("lora_unet_blocks_3_cross_attn_v_img.lora_down.weight", LoraDialect::kohya,
             "blocks.3.cross_attn.v_img", Part::down);
  expect_key("lora_unet__blocks_39_ffn_2.alpha", LoraDialect::kohya, "blocks.39.ffn.2",
             Part::alpha);
  expect_key("transformer.blocks.7.attn2.to_out.0.lora_B.weight", LoraDialect::diffusers,
             "blocks.7.cross_attn.o", Part::up);
  expect_key("blocks.7.ffn.net.0.proj.lora_A.weight", LoraDialect::diffusers, "blocks.7.ffn.0",
             Part::down);
  expect_key("blocks.1.self_attn.o.lora_B.default.weight", LoraDialect::diffsynth,
             "blocks.1.self_attn.o", Part::up);
  expect_key("base_model.model.blocks.1.self_attn.o.lora_B.weight", LoraDialect::peft,
             "blocks.1.self_attn.o", Part::up);
  expect_key("diffusion_model.head.head.diff_b", LoraDialect::comfy, "head.head", Part::diff_b);
  expect_key("diffusion_model.blocks.2.norm3.diff", LoraDialect::comfy, "blocks.2.norm3",
             Part::diff);
  expect_key("lora_unet_img_emb_proj_1.lora_up.weight", LoraDialect::kohya, "img_emb.proj.1",
             Part::up);
  expect_key("diffusion_model.blocks.2.ffn.0.lokr_w2_a", LoraDialect::comfy, "blocks.2.ffn.0",
             Part::other);
}

TEST(LoraKey, ModulesTheModelDoesNotHaveAreEmpty) {
  expect_key("lora_unet_blocks_3_self_attn_x.alpha", LoraDialect::kohya, "", LoraKey::Part::alpha);
  expect_key("lora_unet_blocks_3.alpha", LoraDialect::kohya, "", LoraKey::Part::alpha);
  expect_key("lora_unet_blocks_x_ffn_0.alpha", LoraDialect::kohya, "", LoraKey::Part::alpha);
  expect_key("diffusion_model.nothing.lora_A.weight", LoraDialect::comfy, "", LoraKey::Part::down);
}

TEST(LoraKey, WeightsAreNoLora) {
  EXPECT_FALSE(parse_lora_key("blocks.0.self_attn.q.weight").has_value());
  EXPECT_FALSE(parse_lora_key("").has_value());
}

}  // namespace
}  // namespace ballast::wan
